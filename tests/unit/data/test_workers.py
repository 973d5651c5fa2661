"""Workers: answers in order, errors as they are, and nothing left of them whoever is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import await_end

from erniecore.data.workers import in_processes
from erniecore.errors import EnvironmentFault, RowError


def work(shared, item):
    """Of a worker."""
    if item == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "raise":
        raise RowError("wrong", where="$.a")
    return shared, item, b"x" * (1 << 18)  # more than a pipe holds


def test_answers_come_in_order_and_errors_as_they_are():
    items = [*range(30), "raise", 31]
    answers = in_processes(work, "s", items, 3)
    assert [next(answers)[:2] for _ in range(30)] == [("s", n) for n in range(30)]
    with pytest.raises(RowError, match="wrong") as caught:
        next(answers)
    assert caught.value.where == "$.a"


def test_a_killed_worker_is_named():
    with pytest.raises(EnvironmentFault, match="a process that tokenizes was killed") as caught:
        list(in_processes(work, "s", [1, 2, "kill", 4], 2))
    assert caught.value.found == "status -9"


def test_no_more_workers_are_started_than_there_is_work():
    assert [item for _, item, _ in in_processes(work, "s", ["one"], 5)] == ["one"]


SCRIPT = """
import itertools, os, sys
from test_workers import work
from erniecore.data.workers import in_processes
if __name__ == "__main__":
    for _, item, _ in in_processes(work, "s", itertools.count(), 2):
        if item == 10:
            children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
            print(*children, flush=True)
"""


def semaphores():
    return {path.name for path in Path("/dev/shm").glob("sem.mp-*")}


def test_a_killed_parent_leaves_neither_processes_nor_semaphores(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    before = semaphores()
    pipe = subprocess.PIPE
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, tmp_path / "script.py"]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environ) as process:
        children = process.stdout.readline().split()
        assert len(children) >= 2
        process.kill()
        assert process.stdout.read() == ""  # until the last process that could print there has ended
        assert process.stderr.read() == ""
    await_end(children)
    assert not semaphores() - before
