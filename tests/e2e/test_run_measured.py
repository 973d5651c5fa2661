"""Metrics of callbacks in evaluations: the best step by one of them, and an evaluation that a stop cuts short."""

import shutil
from pathlib import Path

import pytest

from erniecore.api import Exit

EXAMPLE = Path(__file__).parents[2] / "examples" / "one_file" / "weight_norm.py"
#: asks for a stop in the midst of its first evaluation, and gives what it has nevertheless
CUT = """
import os
import signal
from erniecore.api import Plugin, hookimpl
from erniecore.api.callback import Evaluation

class Cut(Plugin):
    kind, name, summary = "callback", "cut", "stops the run once while it evaluates"

    @hookimpl
    def ernie_evaluate(self, run, step):
        if not (run.out / "cut").exists():
            (run.out / "cut").write_text("")
            os.kill(os.getpid(), signal.SIGTERM)
            assert run.stopping()
        return Evaluation({"cut/step": float(step)}, examples=3)

plugin = Cut()
"""


@pytest.mark.parametrize(("changes", "best"), [({}, 1), ({"eval.greater_is_better": "true"}, 2)])
def test_a_callback_says_of_which_metric_a_lower_value_is_better(ernie, runner, changes, best):
    """Of the run alone: there are no rows to evaluate. The settings have the last word."""
    words = [*runner.words(train__max_steps=2), "callbacks=[weight-norm]", "--plugin", EXAMPLE]
    words += ["eval.every=1", "eval.best=weight-norm", *(f"{key}={value}" for key, value in changes.items())]
    done = ernie("run", *words)
    assert done.code == Exit.OK, done.err
    first, second = runner.events("eval")
    assert first["weight-norm"] < second["weight-norm"]  # the weights of this model grow
    assert second["best_step"] == best
    assert "weight-norm" in done.out
    assert [(e["by"], e["examples"]) for e in runner.events("evaluation")] == [("weight-norm", 0)] * 2


def test_a_reward_function_of_one_file_is_a_metric(ernie, runner):
    words = [*runner.words(train__max_steps=1), "--plugin", EXAMPLE.with_name("shorter_reward.py"), "eval.every=1"]
    keys = {"data": runner.home / "eval.jsonl", "metrics": "[shorter]", "max_new_tokens": 4, "limit": 2, "samples": 0}
    done = ernie("run", *words, *(f"callbacks.eval-generate.{key}={value}" for key, value in keys.items()))
    assert done.code == Exit.OK, done.err
    assert runner.events("eval")[0]["generate/shorter"] <= 1
    assert "samples" not in runner.events("evaluation")[0]


def test_two_callbacks_with_one_metric_are_refused(ernie, runner, tmp_path):
    shutil.copy(EXAMPLE, tmp_path / "other.py")
    text = (tmp_path / "other.py").read_text()
    (tmp_path / "other.py").write_text(text.replace('"callback", "weight-norm"', '"callback", "other"'))
    words = [*runner.words(train__max_steps=1), "callbacks=[weight-norm,other]", "--plugin", EXAMPLE]
    done = ernie("run", *words, "--plugin", tmp_path / "other.py", "eval.every=1")
    assert done.code == Exit.PLUGIN, done.err
    assert "two callbacks give one metric" in done.err


@pytest.mark.slow
def test_an_evaluation_that_a_stop_cuts_short_is_repeated(runner, tmp_path):
    (tmp_path / "cut.py").write_text(CUT)
    changes = {"callbacks": "[cut]", "eval__every": 2, "eval__best": "cut/step", "train__max_steps": 4}
    process = runner.start(warm=True, words=["--plugin", tmp_path / "cut.py"], **changes)
    _, errors = process.communicate()
    assert process.returncode == Exit.PREEMPTED, errors
    assert not runner.events("eval")
    process = runner.start(warm=True, words=["--plugin", tmp_path / "cut.py"], **changes)
    _, errors = process.communicate()
    assert process.returncode == Exit.OK, errors
    assert [(e["step"], e["cut/step"], e["best_step"]) for e in runner.events("eval")] == [(2, 2.0, 2), (4, 4.0, 4)]
