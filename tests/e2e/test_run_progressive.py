"""Progressive pre-training through the command line: what grows, bit-equal continuation, and two processes."""

import json
from pathlib import Path

import numpy as np
import pytest
from erniecore_conformance.processes import on_ranks
from safetensors.numpy import load_file

from erniecore.errors import ConfigError, Preempted

HELPERS = Path(__file__).parents[2] / "plugins/parallel/hybrid_parallel/tests/hybrid_helpers.py"


@pytest.fixture(scope="module")
def runs(home, runner_class, tmp_path_factory):
    """A runner with ``whole`` and ``parts`` (stopped after 3 of 8 steps, continued): growth in 4 steps, with dropout."""
    runner = runner_class(home, tmp_path_factory.mktemp("progressive"))
    texts = (f"{a} plus {b} makes {a + b}. the quick brown fox jumps over dogs" for a in range(12) for b in range(8))
    rows = runner.directory / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    runner.chosen = {
        "method__name": "progressive",
        "method__start_length": 8,
        "method__start_batch": 0.25,
        "method__dropout": 0.2,
        "data__train": rows,
        "train__accumulation": 4,
        "train__warmup_steps": 4,
    }
    runner.run("whole", **runner.chosen)
    with pytest.raises(Preempted):
        runner.run("parts", **runner.chosen, run__until=3)
    runner.run("parts", **runner.chosen)
    return runner


def test_length_batch_dropout_and_rate_grow_together(runs):
    steps = runs.events("step", "whole")
    assert [e["progressive/length"] for e in steps] == [8, 22, 36, 50, 64, 64, 64, 64]
    assert [e["progressive/dropout"] for e in steps] == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, 0.2, 0.2, 0.2])
    tokens = [e["tokens"] for e in steps]
    assert tokens[0] < tokens[1] < tokens[2] < tokens[3]  # 1, 2, 3 and 4 of 4 micro-batches
    rates = [e["lr"] for e in steps]
    assert rates[0] < rates[1] < rates[2] < rates[3]


def test_it_continues_bit_for_bit(runs):
    assert runs.curve("parts") == runs.curve("whole")
    assert runs.tensors(8, "parts") == runs.tensors(8, "whole")


def test_after_growth_without_dropout_it_is_pre_training(runs):
    """With nothing to grow, the run is that of ``pt`` to the bit."""
    still = {**runs.chosen, "method__dropout": 0, "method__start_length": 64, "method__start_batch": 1}
    plain = {k: v for k, v in runs.chosen.items() if not k.startswith("method__")}
    runs.run("still", **still, train__max_steps=3)
    runs.run("plain", **plain, method__name="pt", train__max_steps=3)
    assert runs.curve("still") == runs.curve("plain")


@pytest.mark.multiproc
def test_two_processes_train_what_one_does(runs):
    chosen = {**runs.chosen, "method__dropout": 0, "method__start_batch": 1, "train__max_steps": 4}
    runs.run("one", **chosen, data__eval=runs.directory / "rows.jsonl")
    ranks = {**chosen, "parallel__name": "hybrid", "parallel__data": 2, "train__accumulation": 2}
    on_ranks(2, f"{HELPERS}:runs", [runs.words("two", **ranks)], limit=600.0)
    one, two = (load_file(next((runs.directory / run / "model").glob("*.safetensors"))) for run in ("one", "two"))
    for name, weight in one.items():
        np.testing.assert_allclose(two[name], weight, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"method__start_length": 65}, "longer than data.max_seq_len"),
        ({"parallel__name": "hybrid", "parallel__context": 2}, "whole sequences on every rank"),
    ],
)
def test_refusals(runs, changes, text):
    with pytest.raises(ConfigError) as caught:
        runs.run("refused", **{**runs.chosen, **changes})
    assert text in str(caught.value)
