"""What a run does to survive: going back when its numbers break down, saving behind the training, stopping in time, and
proving that it repeats itself.
"""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from erniecore_checkpoint.manifest import list_checkpoints

from erniecore.errors import CheckpointError, Exit, NumericsError, Preempted

SHORT = {"train__max_steps": 8, "checkpoint__every": 2, "checkpoint__keep": 9}


@pytest.fixture
def poisoned(runner, monkeypatch):
    """``poisoned(*steps)``: the loss of these steps is not finite."""
    from erniecore.engine.training.trainer import Trainer

    reduced, seen = Trainer._reduce, Trainer._step

    def arm(*steps):
        current = []

        def learn(trainer, step):
            current[:] = [step]
            return seen(trainer, step)

        def poison(trainer, output):
            means, *rest = reduced(trainer, output)
            return ({**means, "loss": float("nan")}, *rest) if current[0] in steps else (means, *rest)

        monkeypatch.setattr(Trainer, "_step", learn)
        monkeypatch.setattr(Trainer, "_reduce", poison)

    return arm


def test_goes_back_and_passes_over_the_bad_steps(runner, poisoned):
    poisoned(5, 6)
    runner.run(**SHORT, train__max_skips=1, train__rollback_window=1)
    (warning,) = [e for e in runner.events("warning") if e["kind"] == "rollback"]
    assert (warning["step"], warning["to"], warning["skipped_steps"]) == (6, 2, [4, 6])
    assert [e["step"] for e in runner.events("step")] == [1, 2, 3, 4, 5, 3, 7, 8]
    (window,) = json.loads((runner.directory / "out/skipped_steps.json").read_text())
    assert (window["first"], window["last"]) == (4, 6)
    assert any(str(runner.home / "train.jsonl") in row for row in window["rows"])
    evidence = json.loads((runner.directory / "out/bad/step-00000005.json").read_text())
    assert evidence["loss"] is None
    assert evidence["rows"]
    assert all(value is not None for value in evidence["weights"].values())
    assert runner.events("run_end")[-1]["status"] == "finished"


def test_a_continued_run_passes_over_the_same_steps(runner, poisoned):
    poisoned(5, 6)
    runner.run(**SHORT, train__max_skips=1)
    shutil.rmtree(runner.directory / "out/ckpt/step-00000008")
    whole = runner.curve()[8]
    runner.run(**SHORT, train__max_skips=1)
    assert [e["step"] for e in runner.events("step")][-2:] == [7, 8]
    assert runner.curve()[8] == whole


def test_a_second_breakdown_ends_the_run(runner, poisoned):
    poisoned(3, 7)
    with pytest.raises(NumericsError, match="step 7"):
        runner.run(**SHORT, train__max_skips=0)


def test_without_a_checkpoint_there_is_no_way_back(runner, poisoned):
    poisoned(1)
    with pytest.raises(NumericsError, match="step 1"):
        runner.run(**SHORT, train__max_skips=0)
    assert not (runner.directory / "out/skipped_steps.json").exists()


def test_saving_behind_the_training_saves_the_same(runner):
    for background in ("true", "false"):
        runner.run(background, **SHORT, checkpoint__background=background)
    assert [e["step"] for e in runner.events("checkpoint", "true")] == [2, 4, 6, 8]
    for step in (2, 4, 6, 8):
        assert runner.tensors(step, "true") == runner.tensors(step, "false")


def test_a_save_that_fails_behind_the_training_is_told_and_the_next_one_counts(runner, monkeypatch):
    from erniecore.engine.training import saving

    failing = [4, 6]

    class Failing(saving.Save):
        def finish(self, files, groups):
            if self._manifest.step in failing:
                raise CheckpointError("the disk is away", where=str(self.root))
            return super().finish(files, groups)

    monkeypatch.setattr(saving, "Save", Failing)
    runner.run(**SHORT)
    warnings = [e for e in runner.events("warning") if e["kind"] == "save"]
    assert [(e["step"], e["failures"], e["last_saved_step"]) for e in warnings] == [(4, 1, 2), (6, 2, 2)]
    assert [p.name for p in list_checkpoints(runner.directory / "out/ckpt")] == ["step-00000002", "step-00000008"]
    failing.append(8)
    with pytest.raises(CheckpointError, match="the disk is away"):
        runner.run("again", **SHORT, checkpoint__max_failures=1)


def test_until_stops_there_and_says_how_to_go_on(runner):
    with pytest.raises(Preempted, match=r"run\.until=3 after step 3") as caught:
        runner.run(**SHORT, run__until=3)
    assert "raise run.until" in caught.value.fix
    assert (caught.value.exit_code, runner.events("checkpoint")[-1]["step"]) == (Exit.PREEMPTED, 3)
    whole = runner.run("whole", **SHORT)
    runner.run(**SHORT)
    assert runner.tensors(8) == runner.tensors(8, whole.out.name)


def test_the_granted_time_ends_a_run_that_continues_later(runner):
    with pytest.raises(Preempted, match="max_minutes"):
        runner.run(**SHORT, run__max_minutes=1e-9)
    assert runner.run(**SHORT).metrics["loss"] > 0


def test_saves_when_asked_by_file_and_by_the_clock(runner):
    asked = runner.directory / "out/control/save"
    asked.parent.mkdir(parents=True)
    asked.touch()
    runner.run(train__max_steps=3)
    assert [e["step"] for e in runner.events("checkpoint")] == [1, 3]
    assert not asked.exists()
    runner.run("clock", train__max_steps=3, checkpoint__minutes=1e-9)
    assert [e["step"] for e in runner.events("checkpoint", "clock")] == [1, 2, 3]


def test_a_run_proves_that_it_repeats_itself(runner, run_ernie):
    runner.complete(**SHORT)
    out = runner.directory / "out"
    done = run_ernie("ckpt", "prove", out, "--json")
    assert done.code == 0, done.err
    proof = json.loads(done.out)
    assert (proof["ok"], proof["first"], proof["last"], proof["differing"]) == (True, 6, 8, [])
    assert proof["tensors"] == len(runner.tensors(8))


def test_a_run_that_does_not_repeat_itself_is_found(runner, run_ernie):
    from erniecore_checkpoint.reader import load_checkpoint
    from erniecore_checkpoint.save import save_checkpoint

    runner.complete(**SHORT)
    root = runner.directory / "out/ckpt"
    last = load_checkpoint(root / "step-00000008")
    tensors = {group: {n: np.array(a) for n, a in members.items()} for group, members in last.tensors.items()}
    tensors["model"]["model.norm.weight"][3] += 1e-7
    save_checkpoint(root, 8, tensors, last.state, keep=9)
    done = run_ernie("ckpt", "prove", runner.directory / "out", "--from", 4)
    assert done.code == Exit.CHECKPOINT
    assert "steps 5 to 8" in done.out
    assert "DIFFERENT  model: model.norm.weight" in done.out


def test_a_proof_needs_two_checkpoints(refuses, runner):
    runner.run(train__max_steps=1)
    refuses(["ckpt", "prove", runner.directory / "out"], Exit.USAGE, "step-00000001", remedy="save more of them")


def child_of(pid):
    """The one process that ``pid`` has started."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def test_a_killed_run_starts_again_and_ends_as_if_nothing_had_happened(runner, run_ernie):
    whole = {"train__max_steps": 40, "checkpoint__every": 5}
    runner.complete("whole", **whole)
    process = runner.start(**whole, log__every=1, words=["--restarts", "2", "--resume", "never"])
    for line in process.stdout:
        if line.startswith("step   12/"):
            os.kill(child_of(process.pid), signal.SIGKILL)
            break
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "restart 1 of 2 in 0 s" in errors
    assert "killed by SIGKILL" in errors
    (warning,) = [e for e in runner.events("warning") if e["kind"] == "restart"]
    assert warning["attempt"] == 1
    assert runner.tensors(40) == runner.tensors(40, "whole")


def test_errors_that_would_come_again_start_nothing_again(run_ernie, refused, runner):
    outcome = run_ernie("run", *runner.words(model__path=runner.directory / "nowhere"), "--restarts", 3)
    assert outcome.code != 0
    assert "restart" not in outcome.err
    bad = runner.words(train__learning_rate=1e30, train__max_grad_norm=0, train__max_rollbacks=0, train__max_skips=0)
    outcome = run_ernie("run", *bad, "--restarts", 3)
    refused(outcome, Exit.NUMERICS, "1 in a row", remedy="lower train.learning_rate")
    assert "restart" not in outcome.err
