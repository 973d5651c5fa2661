"""The best step of a run: its checkpoint is kept, its weights are exported, training ends when nothing gets better, and a run
that was stopped has the same best step as one that was not. A callback that ends a run."""

import json

import pytest
from erniecore_checkpoint.reader import load_checkpoint

import erniecore
from erniecore.api import Exit
from erniecore.config.core import EvalSection
from erniecore.engine.training.best_step import Best
from erniecore.errors import ConfigError

#: the loss falls while this model learns: by the highest one the best step is the first
FIRST = {"eval__every": 1, "eval__best": "loss", "eval__greater_is_better": "true", "checkpoint__keep": 2}
STOPPER = """
from erniecore.api import Plugin, hookimpl

class Stopper(Plugin):
    kind, name, summary = "callback", "stopper", "ends training after step two from the last rank"

    @hookimpl
    def ernie_step_end(self, run, step):
        if step == 2 and run.ranks.rank == run.ranks.size - 1:
            run.request_stop("it is good enough")

plugin = Stopper()
"""


@pytest.fixture
def best(runner):
    """The runner whose runs choose their best step."""
    plain = runner.words
    eval_rows = {"data__eval": runner.home / "eval.jsonl"}
    runner.words = lambda out="out", **changes: plain(out, **{**eval_rows, **FIRST, **changes})
    return runner


def state_of(run):
    newest = sorted((run.directory / "out" / "ckpt").glob("step-*"))[-1]
    return json.loads((newest / "state.json").read_text())


def test_the_best_checkpoint_is_kept_and_exported(best):
    best.run(checkpoint__every=1)
    evals = best.events("eval")
    assert [event["step"] for event in evals] == [*range(1, 9)]
    assert evals[0]["loss"] > evals[-1]["loss"]
    assert {event["best_step"] for event in evals} == {1}
    kept = sorted(path.name for path in (best.directory / "out" / "ckpt").glob("step-*"))
    assert kept == ["step-00000001", "step-00000007", "step-00000008"]
    assert json.loads((best.directory / "out/model/erniecore_manifest.json").read_text())["provenance"]["steps"] == 1
    weights = erniecore.load_model(best.directory / "out" / "model").model.state_dict()
    first, last = (load_checkpoint(best.directory / f"out/ckpt/step-0000000{n}").tensors["model"] for n in (1, 8))
    name = next(name for name in weights if name.endswith("q_proj.weight"))
    exported = weights[name].numpy().tobytes()
    of_step = [next(array.tobytes() for key, array in stored.items() if name in key) for stored in (first, last)]
    assert exported == of_step[0]
    assert exported != of_step[1]
    assert best.events("run_end")[-1]["steps"] == 8


def test_training_ends_when_nothing_gets_better(best):
    best.run(eval__patience=3)
    (early,) = best.events("early_stop")
    assert early["step"] == 4
    assert "3 evaluations without a better loss" in early["reason"]
    assert best.events("run_end")[-1]["status"] == "finished"
    assert state_of(best)["best"] == {"step": 1, "value": best.events("eval")[0]["loss"], "stale": 3, "evaluated": 4}
    best.run(eval__patience=3)  # the same command does not go on
    assert best.events("step")[-1]["step"] == 4
    best.run(eval__patience=5)
    assert best.events("step")[-1]["step"] == 6


@pytest.mark.slow
def test_a_run_that_was_stopped_has_the_same_best_step(best):
    changes = {"eval__every": 2, "eval__greater_is_better": "false", "train__learning_rate": 0.05}
    best.complete("whole", **changes)
    for until in (2, 3, 5):
        process = best.start(warm=True, run__until=until, **changes)
        _, errors = process.communicate()
        assert process.returncode == Exit.PREEMPTED, errors
    best.complete(**changes)

    def seen(out):
        return {e["step"]: (e["loss"], e["best_step"]) for e in best.events("eval", out)}

    assert seen("out") == seen("whole")
    assert state_of(best)["best"]["step"] == seen("whole")[8][1]
    weights = [(best.directory / out / "model" / "model.safetensors").read_bytes() for out in ("out", "whole")]
    assert weights[0] == weights[1]


def test_a_callback_ends_a_run(ernie, runner, tmp_path):
    (tmp_path / "stopper.py").write_text(STOPPER)
    command = ["run", *runner.words(), "callbacks=[stopper]", "--plugin", tmp_path / "stopper.py"]
    done = ernie(*command)
    assert done.code == Exit.OK, done.err
    assert "stop   after step 2 of 8: it is good enough" in done.out
    assert json.loads((runner.directory / "out/model/erniecore_manifest.json").read_text())["provenance"]["steps"] == 2
    assert ernie(*command).code == Exit.OK  # it is finished
    assert runner.events("step")[-1]["step"] == 2
    assert ernie(*command, "train.max_steps=10").code == Exit.OK
    assert runner.events("step")[-1]["step"] == 10


@pytest.mark.slow
def test_one_rank_ends_all_of_them_after_the_same_step(run_ernie, runner, tmp_path):
    (tmp_path / "stopper.py").write_text(STOPPER)
    words = [*runner.words(), "callbacks=[stopper]", "parallel=hybrid", "launcher.nproc=2"]
    done = run_ernie("run", *words, "--plugin", tmp_path / "stopper.py")
    assert done.code == Exit.OK, done.err
    assert runner.events("early_stop")[0]["step"] == 2
    assert [event["step"] for event in runner.events("step")] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"eval__best": "los"}, "did you mean loss?"),
        ({"data__eval": None}, "there are no held-out rows"),
        ({"eval__every": 0}, "best needs several evaluations"),
        ({"eval__best": None, "eval__patience": 2, "eval__greater_is_better": None}, "patience needs best"),
    ],
)
def test_what_cannot_be_the_best_is_refused(best, changes, said):
    with pytest.raises(ConfigError, match=said.replace("?", "[?]")):
        best.run(**changes)


def observed(values, **section):
    section, best = EvalSection(every=1, best="loss", **section), Best()
    return best, [best.observe(step, {"loss": value}, section) for step, value in enumerate(values, 1)]


def test_better_is_by_more_than_the_least_change():
    best, better = observed([2.0, 1.95, 1.85, float("nan"), 1.8], min_change=0.1)
    assert better == [True, False, True, False, False]
    assert (best.step, best.value, best.stale) == (3, 1.85, 2)


def test_an_evaluation_counts_once():
    best, _ = observed([2.0])
    assert not best.observe(1, {"loss": 1.0}, EvalSection(every=1, best="loss"))
    assert best.value == 2.0


@pytest.mark.parametrize(
    ("name", "greater"),
    [("loss", False), ("mtp/loss", False), ("perplexity", False), ("reward", True), ("accuracy", True)],
)
def test_what_is_better_by_default(name, greater):
    assert EvalSection(every=1, best=name).greater is greater
