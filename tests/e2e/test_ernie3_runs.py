"""Runs of ERNIE 3.0's pre-training: one that continues is the straight one bit for bit, two processes learn as one does."""

import json
from pathlib import Path

import numpy as np
import pytest
from erniecore_checkpoint.reader import load_checkpoint

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZE = (
    "hidden_size=32,intermediate_size=48,num_attention_heads=2,num_hidden_layers=3,num_task_layers=1,task_hidden_size=16,"
    "task_intermediate_size=24,task_num_attention_heads=2,memory_length=8,vocab_size=324"
)
TOWNS = ("Milltown", "Eastbay", "Kingsport", "Northfield")


@pytest.fixture(scope="module")
def home(tmp_path_factory, run_ernie):
    """Directory with ``rows.jsonl``, ``tok`` and the model ``base``."""
    home = tmp_path_factory.mktemp("ernie3")
    rows = [
        row
        for n in range(10)
        for town in TOWNS
        for row in (
            {
                "passage": f"Ada {n} was born in {town}. It rained.",
                "triple": {"head": f"Ada {n}", "relation": "born in", "tail": town},
            },
            {"passage": f"{town} has {n} mills. They are old. Ben likes a mill. He goes to {town}.", "spans": [town]},
        )
    ]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for words in (
        ("tokenizer", "train", "rows.jsonl", "--vocab-size", 300, "--out", "tok"),
        ("model", "init", "--model", "ernie3", "--size", SIZE, "--tokenizer", "tok", "--out", "base"),
    ):
        done = run_ernie(*words, cwd=home)
        assert done.code == 0, done.err
    return home


def trained(run_ernie, home, out, *words, code=0):
    settings = {
        "data.max_seq_len": 64,
        "data.eval_fraction": 0.1,
        "method.segment_length": 16,
        "train.batch_size": 4,
        "train.max_steps": 4,
        "train.learning_rate": 3e-3,
        "log.every": 1,
    }
    chosen = [f"{key}={value}" for key, value in settings.items()]
    plugins = ("--method", "ernie3-pretrain", "--model", "base", "--data", "rows.jsonl", "--out", out)
    done = run_ernie("run", *plugins, *chosen, *words, cwd=home)
    assert done.code == code, done.err
    return load_checkpoint(home / out / "ckpt" / "step-00000004").tensors["model"] if not code else {}


def events(home, out, name):
    found = [json.loads(line) for line in (home / out / "events.jsonl").read_text().splitlines()]
    return [event for event in found if event["event"] == name]


@pytest.fixture(scope="module")
def straight(home, run_ernie):
    return trained(run_ernie, home, "one", "train.accumulation=4")


def test_a_run_that_continues_draws_and_learns_the_same(home, run_ernie, straight):
    trained(run_ernie, home, "cut", "train.accumulation=4", "run.until=2", code=75)
    continued = trained(run_ernie, home, "cut", "train.accumulation=4")
    assert all(np.array_equal(continued[name], value) for name, value in straight.items())
    one, cut = ([event["loss"] for event in events(home, out, "step")] for out in ("one", "cut"))
    assert cut == one


def test_a_run_that_grows_continues_bit_for_bit(home, run_ernie):
    """Length, batch, dropout and rate, together."""
    grows = ("train.accumulation=4", "train.warmup_steps=3", "model.dropout=0.1", "method.start_length=8")
    grows += ("method.start_batch=0.25", "method.start_dropout=0")
    whole = trained(run_ernie, home, "grown", *grows)
    trained(run_ernie, home, "grown-cut", *grows, "run.until=2", code=75)
    continued = trained(run_ernie, home, "grown-cut", *grows)
    assert all(np.array_equal(continued[name], value) for name, value in whole.items())
    steps = events(home, "grown", "step")
    assert [event["progressive/length"] for event in steps] == [8, 10, 13, 16]
    assert [event["progressive/dropout"] for event in steps] == pytest.approx([0, 0.1 / 3, 0.2 / 3, 0.1])
    tokens = [event["tokens"] for event in steps]
    assert tokens[0] < tokens[1] < tokens[3]


@pytest.mark.parametrize(
    "layout",
    [["parallel.data=2"], ["parallel.sharding=2"], ["parallel.sharding=2", "parallel.sharding_stage=2"]],
    ids=["data", "stage1", "stage2"],
)
def test_two_processes_learn_as_one_does(home, run_ernie, straight, layout):
    out = "-".join(layout)
    two = trained(run_ernie, home, out, "train.accumulation=2", "parallel.name=hybrid", *layout)
    worst = max(float(np.abs(two[name] - value).max()) for name, value in straight.items())
    assert worst < 1e-4  # of steps of 3e-3
    for name in ("step", "eval"):
        ours, theirs = events(home, out, name), events(home, "one", name)
        assert [event["loss"] for event in ours] == pytest.approx([event["loss"] for event in theirs], rel=1e-4)
    assert {"kmlm/loss", "document/loss", "reorder/loss", "distance/loss", "uktp/loss"} <= {
        name for event in events(home, out, "step") for name in event
    }


def test_two_ranks_that_share_the_matrices_learn_as_one_does(home, run_ernie, straight):
    trained(run_ernie, home, "tensor", "train.accumulation=4", "parallel.name=hybrid", "parallel.tensor=2")
    ours, theirs = ([event["loss"] for event in events(home, out, "step")] for out in ("tensor", "one"))
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_rows_are_not_shared_by_ranks(home, run_ernie):
    words = ("--method", "ernie3-pretrain", "--model", "base", "--data", "rows.jsonl", "--out", "never")
    done = run_ernie("run", *words, "parallel.name=hybrid", "parallel.context=2", cwd=home)
    assert (done.code, "read whole rows" in done.err) == (2, True)


def test_what_was_trained_generates_and_is_fine_tuned_by_other_methods(home, run_ernie, straight):
    said = run_ernie("generate", "--model", "one/model", "--prompt", "Ada", "--max-new-tokens", 4, "--json", cwd=home)
    assert said.code == 0, said.err
    words = ("--method", "pt", "--model", "one/model", "--data", "rows.jsonl", "--out", "more")
    done = run_ernie("run", *words, "data.max_seq_len=64", "train.max_steps=1", cwd=home)
    assert done.code == 0, done.err
    kept = load_checkpoint(home / "more" / "ckpt" / "step-00000001").tensors["model"]
    assert all(np.array_equal(kept[name], value) for name, value in straight.items() if name.startswith("nlu."))


def test_the_recipe_trains_as_it_stands(home, run_ernie):
    small = ("train.max_steps=1", "train.batch_size=2", "data.max_seq_len=64")
    done = run_ernie("run", EXAMPLES / "ernie3-pretrain.yaml", *small, cwd=home)
    assert done.code == 0, done.err
    assert (home / "runs" / "ernie3" / "model" / "config.json").is_file()
