"""A thread that writes what it is given: order, back-pressure, failures and giving up."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from erniecore_checkpoint.parts import PartWriter
from erniecore_checkpoint.safetensors_io import open_tensors
from erniecore_checkpoint.write_plan import divide
from erniecore_errors import CheckpointError

ARRAYS = {"a": np.arange(4, dtype=np.float32), "b": np.arange(3, dtype=np.uint16), "c": np.arange(5, dtype=np.float32)}


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as executor:
        yield executor


def plan():
    return divide({"model": {"a": ("F32", (4,)), "b": ("BF16", (3,)), "c": ("F32", (5,))}}, {})


def started(directory, executor, limit=None):
    return PartWriter(directory, plan().of(0), executor, limit)


def keys():
    return [name for round_ in plan().rounds(1) for _, name in round_]


def test_arrays_arrive_in_their_file(tmp_path, executor):
    part = started(tmp_path, executor, limit=1)
    for name in keys():
        part.put(ARRAYS[name])
    (file,) = part.files
    assert part.error is None
    found = open_tensors(tmp_path / file.name)
    assert {name: tensor.load().tolist() for name, tensor in found.items()} == {
        n: a.tolist() for n, a in ARRAYS.items()
    }


def test_it_waits_for_the_disk_only_beyond_the_limit(tmp_path, executor, monkeypatch):
    blocked, real = threading.Event(), os.write

    def write(fd, data):
        blocked.wait()
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    part = started(tmp_path, executor, limit=30)
    feeder = threading.Thread(target=lambda: [part.put(ARRAYS[name]) for name in keys()])
    feeder.start()
    feeder.join(0.3)
    assert feeder.is_alive(), "16 + 20 bytes are more than 30"
    blocked.set()
    feeder.join()
    assert len(part.files) == 1


@pytest.mark.parametrize("call", ["write", "fsync", "open"])
def test_a_failing_disk_is_told_and_takes_no_more(tmp_path, executor, monkeypatch, call):
    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fail)
    part = started(tmp_path, executor, limit=1)
    for name in keys():
        part.put(ARRAYS[name])
    while part.busy:
        part.wait(0.1)
    assert "no space left on the disk while saving a checkpoint; older checkpoints are untouched" in str(part.error)


def test_giving_up_ends_the_thread(tmp_path, executor):
    part = started(tmp_path, executor)
    part.put(ARRAYS["a"])
    part.abort()
    while part.busy:
        part.wait(0.1)
    assert isinstance(part.error, CheckpointError)


def test_a_directory_that_is_not_shared_is_named(tmp_path, executor):
    part = started(tmp_path / "elsewhere", executor)
    while part.busy:
        part.wait(0.1)
    assert "file system that all machines share" in part.error.fix


def test_a_bug_is_not_taken_for_a_failing_disk(tmp_path, executor):
    part = started(tmp_path, executor)
    part.put(np.zeros(7, np.float32))
    part.put(np.zeros(7, np.float32))
    while part.busy:
        part.wait(0.1)
    assert "differs from what was announced" in str(part.error)
