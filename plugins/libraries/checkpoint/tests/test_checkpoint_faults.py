"""A disk that fails at any moment of a save: nothing saved before is lost, the error has a remedy, the next save works.

Every operating-system call that a save makes is made to fail in turn.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from erniecore_checkpoint import files, writer
from erniecore_checkpoint.files import translated
from erniecore_checkpoint.manifest import list_checkpoints
from erniecore_checkpoint.reader import load_checkpoint, newest_verified
from erniecore_checkpoint.save import save_checkpoint
from erniecore_errors import CheckpointError

#: the calls that change the disk
CALLS = ("write", "fsync", "rename", "replace", "mkdir", "open", "unlink", "rmdir")
STEPS = (1, 2, 3, 4)


def tensors(step):
    return {"model": {f"t{i}": np.full(50, step, np.float32) for i in range(3)}, "optim": {"m": np.ones(9, np.float32)}}


def save(root, step):
    return save_checkpoint(root, step, tensors(step), {"step": step}, keep=3, max_shard_bytes=450)


class Faulty:
    """Replaces calls of ``os``; the n-th one (counted over all of them) raises, if it concerns the checkpoint."""

    def __init__(self, monkeypatch, fail_at=None, code=errno.EIO):
        self.count, self.fail_at, self.code = 0, fail_at, code
        self.failed = ""
        for name in CALLS:
            monkeypatch.setattr(os, name, self.wrap(name, getattr(os, name)))

    def wrap(self, name, real):
        def call(*args, **kwargs):
            self.count += 1
            if self.count == self.fail_at:
                self.failed = name
                raise OSError(self.code, os.strerror(self.code))
            return real(*args, **kwargs)

        return call


def number_of_calls(root):
    with pytest.MonkeyPatch.context() as patch:
        counter = Faulty(patch)
        save(root, STEPS[-1])
    return counter.count


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Three checkpoints, made once: copying them is much faster than syncing them to the disk each time."""
    root = tmp_path_factory.mktemp("template")
    for step in STEPS[:-1]:
        save(root, step)
    return root


@pytest.fixture
def prepared(template):
    return lambda root: shutil.copytree(template, root, dirs_exist_ok=True)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=["ENOSPC", "EIO", "EROFS"])
def test_a_failure_at_any_call_loses_nothing(tmp_path, prepared, code):
    total = number_of_calls(prepared(tmp_path / "count"))
    assert total > 30
    failed = set()
    for moment in range(1, total + 1):
        root = prepared(tmp_path / f"at-{moment}")
        with pytest.MonkeyPatch.context() as patch:
            faulty = Faulty(patch, moment, code)
            with pytest.raises(CheckpointError) as caught:
                save(root, STEPS[-1])
        failed.add(faulty.failed)
        assert caught.value.fix
        newest, notes = newest_verified(root)
        assert newest is not None
        assert load_checkpoint(newest).step in (3, 4)
        assert notes == []
        save(root, 5)
        assert load_checkpoint(root / "step-00000005").step == 5
        assert [p.name for p in root.iterdir() if p.name.startswith(".")] == []
        assert len(list_checkpoints(root)) == 3
    assert failed >= {"write", "fsync", "rename", "replace", "open"}


def test_a_failure_at_any_call_of_a_repeated_save_keeps_that_step_or_an_older_one(tmp_path, prepared):
    def repeat(root):
        save(root, 3)

    total_root = prepared(tmp_path / "count")
    with pytest.MonkeyPatch.context() as patch:
        counter = Faulty(patch)
        repeat(total_root)
    for moment in range(1, counter.count + 1):
        root = prepared(tmp_path / f"at-{moment}")
        with pytest.MonkeyPatch.context() as patch:
            Faulty(patch, moment)
            with pytest.raises(CheckpointError):
                repeat(root)
        assert newest_verified(root) == (root / "step-00000003", [])


def test_a_failed_save_removes_its_temporary_directory(tmp_path, prepared, monkeypatch):
    root = prepared(tmp_path)
    Faulty(monkeypatch, number_of_calls(prepared(tmp_path / "count")) // 2)
    with pytest.raises(CheckpointError, match="older checkpoints are untouched"):
        save(root, 4)
    assert not list(root.glob(".*"))


def test_too_little_space_is_seen_before_anything_is_written(tmp_path, prepared, monkeypatch):
    root = prepared(tmp_path)
    before = sorted(p.name for p in root.iterdir())
    monkeypatch.setattr(files, "free_bytes", lambda path: 700)
    monkeypatch.setattr(writer, "free_bytes", lambda path: 700)
    with pytest.raises(CheckpointError, match="not enough disk space for a checkpoint; nothing was written") as caught:
        save_checkpoint(root, 4, {"model": {"w": np.zeros(250, np.float32)}}, {}, keep=3)
    assert caught.value.code == "ERN-K003"
    # what retention would have removed after the save may go first
    assert [p.name for p in list_checkpoints(root)] == ["step-00000002", "step-00000003"]
    assert len(before) == 4


def test_a_fifth_more_than_needed_must_be_free(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "free_bytes", lambda path: 1199)
    with pytest.raises(CheckpointError):
        files.require_space(tmp_path, 1000, "a test")
    monkeypatch.setattr(files, "free_bytes", lambda path: 1200)
    files.require_space(tmp_path, 1000, "a test")


CHILD = """
import sys, numpy as np
from pathlib import Path
from erniecore_checkpoint.save import save_checkpoint
from erniecore_errors import CheckpointError
root, size = Path(sys.argv[1]), int(sys.argv[2])
for step in range(1, 9):
    try:
        save_checkpoint(root, step, {"model": {"w": np.full(size * step, step, np.float32)}}, {}, keep=2)
    except CheckpointError as error:
        print(step, error)
        break
"""


def child(root, size, **kwargs):
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(root), str(size)], capture_output=True, text=True, check=False, **kwargs
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_real_file_size_limit_leaves_the_older_checkpoints(tmp_path):
    def limit():
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    output = child(tmp_path / "ckpt", 4000, preexec_fn=limit)
    assert output.startswith("4 ")
    assert "the file size limit is reached" in output
    assert newest_verified(tmp_path / "ckpt") == (tmp_path / "ckpt" / "step-00000003", [])


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 200 KB, where this process may mount one."""
    target = tmp_path / "disk"
    target.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(target)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a file system is not permitted here")
    yield target
    subprocess.run(["umount", str(target)], check=True)


def test_a_really_full_disk_leaves_the_older_checkpoints(small_disk):
    output = child(small_disk / "ckpt", 4000)
    assert "not enough disk space" in output
    path, notes = newest_verified(small_disk / "ckpt")
    assert path is not None
    assert notes == []
    assert not list((small_disk / "ckpt").glob(".*"))


def test_a_disk_that_fills_up_while_saving_leaves_the_older_checkpoints(small_disk, monkeypatch):
    save_checkpoint(small_disk, 1, {"model": {"w": np.ones(10_000, np.float32)}}, {})
    monkeypatch.setattr(writer, "require_space", lambda *_: None)
    with pytest.raises(CheckpointError, match="no space left on the disk while saving a checkpoint; older checkpoints"):
        save_checkpoint(small_disk, 2, {"model": {"w": np.ones(60_000, np.float32)}}, {})
    assert newest_verified(small_disk) == (small_disk / "step-00000001", [])
    assert not list(Path(small_disk).glob(".*"))


def test_a_directory_without_write_permission_is_reported(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "ckpt"))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(CheckpointError, match="no permission while saving a checkpoint"):
        save(tmp_path / "ckpt", 1)


def test_no_memory_while_a_file_is_read_is_no_fault_of_the_file(tmp_path):
    """Exit 6, as where numpy has none."""
    with pytest.raises(MemoryError, match="Cannot allocate"), translated(tmp_path, "reading it"):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
