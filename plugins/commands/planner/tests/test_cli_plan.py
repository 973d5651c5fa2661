"""``ernie plan`` and ``ernie bench``."""

import json
import re
import subprocess
import sys

import pytest

from erniecore.cli.app import main


def plan(capsys, *args):
    assert main(["plan", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("model", "size", "billions", "active"),
    [
        ("ernie45", "0.3b", "0.3607", "0.3607"),
        ("ernie45-moe", "21b-a3b", "21.825", "3.35"),
        ("ernie45-moe", "300b-a47b", "299.484", "47.9"),
        ("ernie45-vl", "28b-a3b", "29.40", "3.35"),
        ("ernie45-vl", "424b-a47b", "423.53", "47.9"),
        ("paddleocr-vl", "0.9b", "0.906", "0.467"),
    ],
)
def test_published_parameter_counts(capsys, model, size, billions, active):
    made = plan(capsys, "--model", model, f"model.size={size}", "--method", "sft", "--device", "cuda")
    digits, fewer = (len(text.partition(".")[2]) for text in (billions, active))
    assert f"{made['parameters']['total'] / 1e9:.{digits}f}" == billions
    assert f"{made['parameters']['active'] / 1e9:.{fewer}f}" == active


def test_states_are_those_of_the_run(capsys):
    args = ("--model", "ernie45", "model.size=tiny", "--method", "sft")
    made = plan(capsys, *args)
    assert main(["run", "--dry-run", *args, "--json"]) == 0
    for name, value in json.loads(capsys.readouterr().out).items():
        if name != "name":
            assert made[name] == value


def test_seq_is_the_length_of_rows(capsys):
    args = ("--model", "ernie45", "model.size=tiny", "--method", "sft")
    short, long = plan(capsys, *args, "--seq", "512"), plan(capsys, *args, "data.max_seq_len=1024")
    assert (short["estimate"]["sequence_length"], long["estimate"]["sequence_length"]) == (512, 1024)
    assert long["estimate"]["kv_cache"] == 2 * short["estimate"]["kv_cache"]


def test_a_divided_run_is_planned_by_stage(capsys):
    args = ("--model", "ernie45", "model.size=0.3b", "--method", "sft", "train.accumulation=4", "run.out=x")
    divided = plan(capsys, *args, "--parallel", "hybrid", "parallel.pipeline=2")["estimate"]
    first, last = divided["stages"]
    assert [*first["layers"], *last["layers"]] == list(range(18))
    assert (first["in_flight"], last["in_flight"]) == (2, 1)
    whole = plan(capsys, *args)["estimate"]["peak_memory"]
    assert divided["peak_memory"] == max(first["peak_memory"], last["peak_memory"]) < whole
    assert main(["plan", *args, "--parallel", "hybrid", "parallel.pipeline=2"]) == 0
    told = capsys.readouterr().out
    assert re.search("stage 0 +layers 0-", told)
    assert "-17 and head" in told


def test_an_adapter_costs_less_and_a_reference_costs_work(capsys):
    args = ("--model", "ernie45", "model.size=0.3b")
    full, lora = plan(capsys, *args, "--method", "sft"), plan(capsys, *args, "--method", "sft", "--adapter", "lora")
    assert lora["estimate"]["peak_memory"] < full["estimate"]["peak_memory"] / 1.5
    assert lora["estimate"]["flops"]["backward"] < 0.6 * full["estimate"]["flops"]["backward"]
    dpo = plan(capsys, *args, "--method", "dpo")
    assert dpo["estimate"]["flops"]["reference"] == full["estimate"]["flops"]["forward"]
    assert dpo["estimate"]["peak_memory"] > full["estimate"]["peak_memory"] + full["weights"] - 1


def test_there_is_no_time_without_a_measurement(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    args = ("--model", "ernie45", "model.size=tiny", "--method", "sft")
    assert plan(capsys, *args)["estimate"]["min_step_seconds"] is None
    main(["plan", *args])
    assert re.search("step time +unknown; `ernie bench matmul` measures this device", capsys.readouterr().out)


def test_a_measured_rate_gives_the_time(environ, tmp_path):
    variables = environ(XDG_CACHE_HOME=str(tmp_path), OMP_NUM_THREADS="1")

    def ernie(*args):
        command = [sys.executable, "-m", "erniecore", *args, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    best = ernie("bench", "matmul", "--seconds", "0.01")
    assert best["flops"] == max(row["flops"] for row in best["shapes"])
    made = ernie("plan", "--model", "ernie45", "model.size=tiny", "--method", "sft")["estimate"]
    assert made["matmul_rate"]["flops"] == best["flops"]
    assert made["min_step_seconds"] == pytest.approx(made["step_flops"] / best["flops"])


def test_a_dtype_that_the_device_lacks_is_refused(capsys):
    assert main(["bench", "matmul", "--dtype", "float8"]) == 2
    assert "float32" in capsys.readouterr().err


def test_planning_imports_no_paddle(environ):
    code = (
        "import sys; from erniecore.cli.app import main\n"
        "code = main(['plan', '--model', 'ernie45-moe', 'model.size=tiny', '--method', 'dpo', '--adapter', 'lora'])\n"
        "print('paddle' in sys.modules, code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ())
    assert done.stdout.splitlines()[-1] == "False 0"


def test_measured_steps_and_links_are_used_by_plans_and_runs(talker, environ, tmp_path, warm):
    """One measurement of each, in processes of their own; then a plan that expects it and a run that compares itself."""
    variables = environ(XDG_CACHE_HOME=str(tmp_path / "cache"), OMP_NUM_THREADS="1")

    def ernie(*args, last=False):
        process = warm.start([*args, "--json"], tmp_path, variables)
        printed, errors = process.communicate()
        assert process.returncode == 0, errors
        return json.loads(printed.splitlines()[-1] if last else printed)

    data = ("--method", "sft", "--model", str(talker / "model"), "--data", str(talker / "rows.jsonl"))
    args = (*data, "data.max_seq_len=96", "train.accumulation=1")
    measured = ernie("bench", "train", *args, "--steps", "2")
    assert len(measured["seconds"]) == 2
    expected = ernie("plan", *args)["estimate"]["step_seconds"]
    assert expected == pytest.approx(measured["step_flops"] / measured["flops"])
    end = ernie("run", *args, "train.max_steps=1", "--out", str(tmp_path / "run"), last=True)
    assert end["planned_seconds"] == pytest.approx(expected)

    ernie("bench", "operators", "--rounds", "1")
    assert ernie("bench", "train", *args, "--steps", "1")["timed"]["label"].startswith("ernie45 sft full")
    loader = ernie("bench", "loader", *args)
    assert loader["tokens"] > loader["rows"] > 0
    served = ernie(
        "bench", "serve", "--model", str(talker / "model"), "--rows", "2,1", "--lengths", "4", "--tokens", "3"
    )
    assert [row[:2] for row in served["decode"]] == [[1, 4], [2, 4]]
    made = ernie("plan", *args)["estimate"]
    assert made["step_seconds"] == pytest.approx(sum(made["operators"]["parts"].values()))
    assert made["operators"]["parts"]["data"] == pytest.approx(96 / loader["rate"]["batch_tokens_per_s"])
    assert made["operators"]["runs"] == 1
    assert made["data_seconds"] > 0
    assert made["generation"][1] == pytest.approx(served["decode"][0][2])

    ernie("bench", "matmul", "--seconds", "0.01")
    alone = ernie("plan", *args, "--accelerators", "2")
    link = ernie("bench", "comm", "--seconds", "0.01")
    assert {row["what"] for row in link["rows"]} == {"all_reduce", "all_gather"}
    assert ernie("plan", *args, "--accelerators", "2")["fastest"]["time"] != alone["fastest"]["time"]


@pytest.mark.parametrize("rows", ["", "0", "1,x"])
def test_numbers_of_rows_that_are_none_are_refused(capsys, rows):
    assert main(["bench", "serve", "--model", "nowhere", "--rows", rows]) == 2
    assert "--rows" in capsys.readouterr().err


def test_smaller_runs_are_real_and_the_cheapest_comes_first(capsys):
    args = ("--model", "ernie45", "model.size=0.3b", "--method", "sft", "train.batch_size=4", "data.max_seq_len=2048")
    made = plan(capsys, *args, "--smaller")
    first = made["smaller"][0]
    assert first["settings"] == ["train.recompute=full"]
    assert all(row["peak_memory"] < 0.98 * made["estimate"]["peak_memory"] for row in made["smaller"])
    changed = plan(capsys, *args, *first["settings"])["estimate"]
    assert {name: changed[name] for name in ("peak_memory", "process_memory")} == {
        name: first[name] for name in ("peak_memory", "process_memory")
    }
    assert "smaller" not in changed
    assert main(["plan", *args, "--smaller"]) == 0
    assert "with train.recompute=full" in capsys.readouterr().out


def test_products_with_a_packed_head_need_no_buffers(capsys):
    args = ("--model", "ernie45", "model.size=0.3b", "--method", "sft", "--adapter", "lora", "--quantizer", "bf16")
    float32, packed = (
        plan(capsys, *args, f"quantizer.head={head}", "device.threads=2")["estimate"] for head in ("none", "bf16")
    )
    beside = {
        name: made["process_memory"] - made["peak_memory"] for name, made in (("none", float32), ("bf16", packed))
    }
    assert packed["peak_memory"] < float32["peak_memory"]
    assert beside["none"] - beside["bf16"] > 100 << 20
