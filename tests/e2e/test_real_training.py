"""Training on data that nobody here wrote: every row accounted for, a loss that falls, an interruption that shows nowhere.

Each training takes about a minute on two cores; set ERNIE_REAL_DATA to the directory of the data.
"""

import json
import os
import signal
from pathlib import Path

import pytest

from erniecore.errors import Exit

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("ERNIE_REAL_DATA"), reason="ERNIE_REAL_DATA names no directory"),
]

ALPACA, TOOLS = "alpaca_en_demo.json", "glaive_toolcall_en_demo.json"
#: 9.7 million parameters: a dense layer, then 20 experts of which 2 are chosen, and a shared one
SIZE = {
    "hidden_size": 384,
    "initializer_range": 0.05,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "moe_num_experts": 20,
    "moe_k": 2,
    "moe_intermediate_size": 256,
    "moe_num_shared_experts": 1,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": 1,
    "num_nextn_predict_layers": 0,
}
RECIPE = {
    "model.name": "ernie45-moe",
    "train.learning_rate": 2e-3,
    "optimizer.beta2": 0.95,
    "train.schedule": "wsd",
    "train.warmup_steps": 10,
    "train.decay_steps": 50,
    "train.max_steps": 140,
}
FORMS = {
    ALPACA: {"data.format": "alpaca", "data.max_seq_len": 512, "data.max_drop": 0.1, "train.batch_size": 3},
    TOOLS: {"data.format": "messages", "data.max_seq_len": 1024, "model.template": "thinking"},
}


def rows_of(name):
    return json.loads((Path(os.environ["ERNIE_REAL_DATA"]) / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def real(tmp_path_factory, run_ernie):
    """A directory with a tokenizer of 4,096 ids and a new model ``base``, and each file cut into train and held-out rows."""
    place = tmp_path_factory.mktemp("real")
    for name in (ALPACA, TOOLS):
        rows = rows_of(name)
        cut = len(rows) - len(rows) // 20
        (place / name).write_text(json.dumps(rows[:cut], ensure_ascii=False, indent=1))
        (place / f"held_{name}").write_text(json.dumps(rows[cut:], ensure_ascii=False, indent=1))
    words = ["tokenizer", "train", place / ALPACA, place / TOOLS, "--vocab-size", 4096, "--out", place / "tok"]
    made = run_ernie(*words)
    assert made.code == 0, made.err
    size = ",".join(f"{key}={value}" for key, value in SIZE.items())
    words = ["--model", "ernie45-moe", "--tokenizer", place / "tok", "--size", size, "--out", place / "base", "--json"]
    made = run_ernie("model", "init", *words)
    assert made.code == 0, made.err
    assert 9e6 < json.loads(made.out)["parameters"] < 11e6
    return place


@pytest.fixture
def real_runner(runner_class, real, tmp_path):
    """A runner with this model."""
    return runner_class(real, tmp_path)


def run_words(name, real, **more):
    keys = RECIPE | FORMS[name] | {"data.train": real / name, "data.eval": real / f"held_{name}"} | more
    return {key.replace(".", "__"): value for key, value in keys.items()}


@pytest.mark.parametrize("name", [ALPACA, pytest.param(TOOLS, marks=pytest.mark.combination)])
def test_held_out_loss_falls_by_a_third_in_140_steps(real, real_runner, run_ernie, name, record_property):
    first = untrained_loss(real, run_ernie, name)
    outcome = run_ernie("run", *real_runner.words(**run_words(name, real, **{"eval.every": 70})))
    assert outcome.code == 0, outcome.err
    evals = [e["loss"] for e in real_runner.events("eval")]
    (end,) = real_runner.events("run_end")
    record_property("held-out loss", [first, *evals])
    record_property("tokens/s", end["tokens"] / end["seconds"])
    print(f"{name}: held-out loss {first:.3f} -> {evals}; {end['tokens'] / end['seconds']:.0f} tokens/s")
    assert evals[-1] < 2 / 3 * first
    report = json.loads((real_runner.directory / "out" / "data_report.json").read_text())
    for split, file in (("train", name), ("eval", f"held_{name}")):
        part = report[split]
        assert part["rows"] == len(json.loads((real / file).read_text()))
        assert part["rows"] == part["kept"] + part["truncated"] + part["dropped"]
        assert part["dropped"] == sum(n for code, n in part["reasons"].items() if code.startswith("ERN-"))
        assert part["samples"] >= part["kept"] + part["truncated"]
    answered = run_ernie(
        "generate", "--model", real_runner.directory / "out", "--prompt", "Name three colors.", "--max-new-tokens", 8
    )
    assert answered.code == 0, answered.err


def untrained_loss(real, run_ernie, name):
    """Of the new model on the held-out rows, in training's own words: a run of one step that changes next to nothing."""
    keys = run_words(name, real, **{"train.max_steps": 1, "train.learning_rate": 1e-30, "checkpoint.export": "false"})
    keys |= {"train__warmup_steps": 0, "train__decay_steps": 1, "train__schedule": "constant"}
    out = real / f"untrained_{name}"
    words = [f"{key.replace('__', '.')}={value}" for key, value in keys.items()]
    outcome = run_ernie("run", "method.name=sft", *words, f"model.path={real / 'base'}", f"run.out={out}")
    assert outcome.code == 0, outcome.err
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return next(e["loss"] for e in events if e["event"] == "eval")


def test_every_row_of_every_file_is_accounted_for(real, ernie):
    for path in sorted(Path(os.environ["ERNIE_REAL_DATA"]).glob("*.json")):
        outcome = ernie("data", "check", path, "--model", real / "base", "--max-seq-len", 512, "--json")
        report = json.loads(outcome.out)
        assert report["rows"] == len(json.loads(path.read_text(encoding="utf-8"))), path
        assert report["rows"] == report["kept"] + report["truncated"] + report["dropped"], path
        assert outcome.code == (Exit.DATA if report["dropped"] else Exit.OK), path
        assert all(error["line"] > 0 and error["message"] for error in report["errors"]), path


INTERRUPTED = {"train.max_steps": 20, "checkpoint.every": 6, "train.decay_steps": 5, "train.batch_size": 2}


@pytest.fixture(scope="module")
def straight(real, runner_class, tmp_path_factory):
    """The run that the interrupted ones must equal."""
    runner = runner_class(real, tmp_path_factory.mktemp("straight"))
    process = runner.start(**run_words(ALPACA, real, **INTERRUPTED))
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    return runner


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_interrupted_run_gives_the_same_curve_bit_for_bit(real, real_runner, straight, number):
    options = run_words(ALPACA, real, **INTERRUPTED)
    code, _, errors = real_runner.signal_at(10, number, "broken", **options)
    assert code == (Exit.PREEMPTED if number == signal.SIGTERM else -number), errors
    process = real_runner.start("broken", **options)
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "continuing from" in out
    assert real_runner.curve("broken") == straight.curve()
    assert real_runner.events("eval", "broken")[-1]["loss"] == straight.events("eval")[-1]["loss"]
    assert real_runner.tensors(20, "broken") == straight.tensors(20)
