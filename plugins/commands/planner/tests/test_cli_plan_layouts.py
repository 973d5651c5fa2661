"""``ernie plan --accelerators``: layouts over several accelerators."""

import json

import pytest
from erniecore_hybrid_parallel.config import HybridConfig
from erniecore_hybrid_parallel.layouts import HybridLayouts
from erniecore_planner.allowed import AllowedSpace

from erniecore.api.parallel import DecoderShape, LayerShape
from erniecore.cli.app import main

SFT_21B = ("--model", "ernie45-moe", "model.size=21b-a3b", "--method", "sft", "--device", "cuda", "--seq", "8192")
LOW = "train.precision=bfloat16"
DENSE = LayerShape(heads=8, kv_heads=4, head_dim=64, mlp=2048)


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


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        (("--method", "sft"), []),
        (("--method", "sft", "method.neftune_alpha=5"), ["pipeline", "context"]),
        (("--method", "sft", "--quantizer", "fp8-block"), ["context"]),
    ],
)
def test_layouts_that_the_rest_of_a_run_refuses_are_not_tried(capsys, settings, refused):
    args = ("--model", "ernie45", "model.size=0.3b", "--device", "cuda", "--seq", "16384", *settings)
    made = plan(capsys, *args, "--accelerators", "8", "--accelerator", "H100")
    assert made["refused"] == refused
    found = [made[name] for name in ("fastest", "cheapest", "lowest_memory")] + made["runners_up"]
    assert all(layout["degrees"][axis] == 1 for layout in found for axis in refused)
    assert main(["plan", *args, "--accelerators", "8", "--accelerator", "H100"]) == 0
    out = capsys.readouterr().out
    assert all(f"not tried, as this run refuses it: {axis}" in out for axis in refused)
    assert out.count("not tried") == len(refused)


def test_choices_of_degrees_can_be_refused_too():
    space = HybridLayouts(HybridConfig(), DecoderShape(hidden=512, vocab=32768, tied=False, layers=(DENSE,) * 4))
    refuse = {"parallel.sharding_stage=3", "parallel.sequence=true"}
    allowed = AllowedSpace(space, lambda settings: not refuse & {*settings})
    assert allowed.refused == ("sharding stage 3", "sequence")
    kept = [variant for layout in allowed.layouts(4) for variant in allowed.variants(layout)]
    assert {variant.sharding_stage for variant in kept} == {1, 2}
    assert not any(variant.sequence for variant in kept)
    assert AllowedSpace(space, lambda settings: False).refused == ()
