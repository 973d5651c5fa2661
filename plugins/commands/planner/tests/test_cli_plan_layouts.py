"""``ernie plan --accelerators``: layouts over several accelerators."""

import json

import pytest

from erniecore.cli.app import main

SFT_21B = ("--model", "ernie45-moe", "model.size=21b-a3b", "--method", "sft", "--device", "cuda", "--seq", "8192")
LOW = "train.precision=bfloat16"


def plan(capsys, *args, status=0):
    assert main(["plan", *args, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_layouts_of_a_known_accelerator(capsys):
    made = plan(capsys, *SFT_21B, LOW, "--accelerators", "8", "--accelerator", "H100")
    best = made["fastest"]
    assert best["fits"]
    assert best["time"]["total"] <= min(layout["time"]["total"] for layout in made["runners_up"])
    assert made["cheapest"]["price"] <= best["price"]
    assert made["tokens_per_step"] == 8 * 8 * 8192  # eight micro-batches each, the default of sft
    degrees = best["degrees"]
    assert degrees["tensor"] * degrees["pipeline"] * degrees["sharding"] * degrees["data"] * degrees["context"] == 8


def test_settings_of_a_layout_are_words_of_a_run(capsys):
    args = plan(capsys, *SFT_21B, LOW, "--accelerators", "8", "--accelerator", "H200")["fastest"]["settings"].split()
    assert all(word.startswith(("parallel.", "train.recompute=")) for word in args)


def test_where_nothing_fits_the_exit_code_says_so(capsys):
    made = plan(capsys, *SFT_21B, LOW, "--accelerators", "2", "--accelerator", "16:100", status=6)
    assert made["fastest"] is None
    assert made["too_large"][0]["free"] < 0


def test_text_names_the_choice_and_why(capsys):
    assert main(["plan", *SFT_21B, LOW, "--accelerators", "8", "--accelerator", "A100"]) == 0
    out = capsys.readouterr().out
    for word in ("fastest", "time: ", "memory: ", "settings: ", "cheapest", "next ", "slower", "free"):
        assert word in out


def test_a_cluster_file(capsys, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "machines:\n"
        "  - {count: 1, accelerators: 8, accelerator: big, memory: 80, tflops: 300, link: 200, host_memory: 1000}\n"
        "  - {count: 1, accelerators: 8, accelerator: small, memory: 48, tflops: 150}\n"
        "network: 12.5\n"
    )
    made = plan(capsys, *SFT_21B, LOW, "--cluster", str(file))
    assert made["accelerators"] == 16
    assert made["fastest"] is not None


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--accelerators", "8", "--accelerator", "H"), "several accelerators"),
        (("--accelerators", "8", "--accelerator", "Q7"), "MEMORY:TFLOPS"),
        (("--accelerators", "8", "--accelerator", "a:b"), "MEMORY:TFLOPS"),
        (("--accelerators", "8"), "--accelerator"),
        (("--cluster", "missing.yaml"), "cannot be read"),
    ],
)
def test_wrong_words_are_explained(capsys, args, expected):
    assert main(["plan", *SFT_21B, *args]) == 2
    captured = capsys.readouterr()
    assert expected in captured.out + captured.err


def test_processes_of_this_processor_need_a_measured_rate(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["plan", "--model", "ernie45", "model.size=tiny", "--method", "sft", "--accelerators", "2"]) == 2
    captured = capsys.readouterr()
    assert "ernie bench matmul" in captured.out + captured.err


def test_the_old_spellings_work_and_warn(capsys, tmp_path):
    args = (*SFT_21B, LOW)
    now = plan(capsys, *args, "--accelerators", "8", "--accelerator", "H100")
    assert main(["plan", *args, "--cards", "8", "--card", "H100", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == now
    assert "--cards is deprecated and will be removed in the next minor version; use --accelerators" in shown.err
    file = tmp_path / "cluster.yaml"
    file.write_text("machines:\n  - {count: 1, cards: 8, card: big, memory: 80, tflops: 300}\n")
    assert plan(capsys, *args, "--cluster", str(file))["accelerators"] == 8
