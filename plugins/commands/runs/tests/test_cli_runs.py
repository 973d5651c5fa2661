"""``ernie runs``: output, JSON, exit codes, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from event_runs import ernie as ernie  # the fixtures
from event_runs import run_dir as run_dir

from erniecore.errors import Exit


def test_runs_are_listed(ernie, run_dir):
    code, out, _ = ernie("runs", "list", run_dir.parent)
    assert code == 0
    assert out.splitlines()[1].split() == ["demo", "finished", "30", "0.1000", str(run_dir)]


def test_runs_as_json(ernie, run_dir):
    (row,) = json.loads(ernie("runs", "list", run_dir, "--json")[1])
    assert (row["name"], row["status"], row["steps"], row["starts"]) == ("demo", "finished", 30, 1)


def test_a_directory_that_does_not_exist_has_no_runs(ernie, tmp_path):
    assert ernie("runs", "list", tmp_path / "nowhere")[0] == Exit.USAGE


@pytest.mark.parametrize("arguments", [[], ["--now"]])
def test_what_does_not_run_cannot_be_stopped(ernie, run_dir, tmp_path, arguments):
    code, _, errors = ernie("runs", "stop", run_dir, *arguments)
    assert code == Exit.USAGE
    assert "nothing runs" in errors
    assert not (run_dir / "control" / "stop").exists()
    code, _, errors = ernie("runs", "stop", tmp_path / "nowhere", *arguments)
    assert code == Exit.USAGE
    assert "not a run directory" in errors


def test_a_lock_is_taken_by_the_processes_that_the_kernel_names(run_dir):
    from erniecore_runs.stopping import holders, taken_locks

    lock = run_dir / "control" / "lock-0"
    lock.parent.mkdir(exist_ok=True)
    lock.touch()
    script = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script, str(lock)], **pipes) as holder:
        holder.stdout.readline()
        assert taken_locks(run_dir) == [lock]
        assert list(holders(lock)) == [holder.pid]
        holder.stdin.close()
    assert taken_locks(run_dir) == []
    assert list(holders(lock)) == []


def test_the_list_imports_no_paddle(run_dir):
    script = (
        "import sys; from erniecore.cli.app import main; code = main(sys.argv[1:]); "
        "print('paddle' in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-c", script, "runs", "list", str(run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "False"
