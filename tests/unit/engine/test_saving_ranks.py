"""Two ranks save together while any call of the disk fails on either: both hear the same error, nothing saved before is lost,
and the next save works. The ranks are threads that exchange values."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from itertools import count

import numpy as np
import pytest
from erniecore_checkpoint.reader import load_checkpoint, newest_verified

from erniecore.config.core import CheckpointSection
from erniecore.engine.process_group import SingleProcess
from erniecore.engine.training import saving
from erniecore.engine.training.gather import LocalShard
from erniecore.errors import CheckpointError
from erniecore.types.process_group import ShardSpec

SIZE = 2
#: the calls that change the disk
CALLS = ("write", "fsync", "rename", "replace", "mkdir", "open")


class ThreadProcessGroup(SingleProcess):
    """One of two ranks in this process."""

    def __init__(self, rank, meeting):
        self.rank, self.size, self.meeting = rank, SIZE, meeting

    def all_gather_object(self, value):
        values, barrier = self.meeting
        values[self.rank] = value
        barrier.wait(60)
        found = list(values)
        barrier.wait(60)
        return found


def arrays(step):
    return {f"w{i}": np.full(50 + i, step, np.float32) for i in range(4)}


class Told:
    """The callbacks of a run: what was warned of."""

    def __init__(self):
        self.warnings = []

    def emit(self, *_, **__):
        pass

    def checkpoint_saved(self, path):
        pass

    def warn(self, kind, **facts):
        self.warnings.append(facts["message"])


class State:
    """A state whose tensors tell its step."""

    step = 0

    def counters(self):
        return {"step": self.step}


@pytest.fixture
def save(monkeypatch):
    """``save(root, *steps, background)``: what each rank ended with, a path or an error; and what it was told."""

    def groups(state, ranks):
        return {"model": {n: LocalShard(a, ShardSpec(a.shape)) for n, a in arrays(state.step).items()}}

    monkeypatch.setattr(saving, "checkpoint_groups", groups)

    def work(root, *steps, background=False):
        meeting, ended = ([None] * SIZE, threading.Barrier(SIZE)), [None] * SIZE
        section, told = CheckpointSection(keep=2, max_failures=1), [Told() for _ in range(SIZE)]

        def one(rank):
            ranks, state = ThreadProcessGroup(rank, meeting), State()
            saver = saving.CheckpointSaver(root, section, ranks, told[rank], dict, "")
            try:
                for state.step in steps:
                    ended[rank] = saver.save(state, background=background)
                ended[rank] = saver.settle(wait=True) or ended[rank]
            except CheckpointError as error:
                ended[rank] = error
            except BaseException:
                meeting[1].abort()
                raise

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(SIZE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return ended, told

    return work


class Faulty:
    """The n-th call of ``CALLS`` raises; ``count``: so many were made."""

    def __init__(self, patch, fail_at=None, code=errno.EIO):
        self.count, self.fail_at, self.code, self.lock = 0, fail_at, code, threading.Lock()
        for name in CALLS:
            patch.setattr(os, name, self.wrap(getattr(os, name)))

    def wrap(self, real):
        def call(*args, **kwargs):
            with self.lock:
                self.count += 1
                failing = self.count == self.fail_at
            if failing:
                raise OSError(self.code, os.strerror(self.code))
            return real(*args, **kwargs)

        return call


@pytest.fixture
def before(save, tmp_path):
    save(tmp_path / "before", 1)
    return lambda name: shutil.copytree(tmp_path / "before", tmp_path / name)


def test_both_write_and_both_know_the_checkpoint(save, tmp_path):
    ended, _ = save(tmp_path, 1, 2)
    assert ended == [tmp_path / "ckpt" / "step-00000002"] * 2
    checkpoint = load_checkpoint(ended[0])
    assert {n: a.tolist() for n, a in checkpoint.tensors["model"].items()} == {
        n: a.tolist() for n, a in arrays(2).items()
    }
    assert len(checkpoint.manifest.groups["model"]) == SIZE


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS], ids=["ENOSPC", "EROFS"])
def test_a_failure_at_any_call_is_heard_by_both_and_loses_nothing(save, before, code):
    for moment in count(1):
        root = before(f"at-{moment}")
        with pytest.MonkeyPatch.context() as patch:
            faulty = Faulty(patch, moment, code)
            ended, _ = save(root, 2)
        if faulty.count < moment:
            break
        texts = {str(error) for error in ended}
        assert len(texts) == 1
        assert all(isinstance(error, CheckpointError) and error.fix for error in ended), texts
        newest, notes = newest_verified(root / "ckpt")
        assert newest is not None
        assert notes == []
        assert load_checkpoint(newest).step in (1, 2)
        ended, _ = save(root, 3)
        assert ended == [root / "ckpt" / "step-00000003"] * 2
        assert [path.name for path in (root / "ckpt").glob(".*")] == []
    assert moment > 25


def test_behind_the_training_a_failure_is_a_warning_and_the_next_save_counts(save, before, monkeypatch):
    root, failing = before("run"), [2]
    finish = saving.Save.finish

    def fail(self, files, groups):
        if self._manifest.step in failing:
            self.discard()
            raise CheckpointError("the disk is away", where="there")
        return finish(self, files, groups)

    monkeypatch.setattr(saving.Save, "finish", fail)
    ended, told = save(root, 2, 3, background=True)
    assert ended == [root / "ckpt" / "step-00000003"] * 2
    assert [len(each.warnings) for each in told] == [1, 1]
    failing.extend([4, 5])
    ended, _ = save(root, 4, 5, 6, background=True)
    assert [str(error) for error in ended] == ["there: the disk is away"] * 2
