"""``ernie runs clean`` and ``restore``: what is shown, what is moved, what is never touched."""

import fcntl
import json
import os

import pytest
from event_runs import ernie as ernie  # the fixture

from erniecore.errors import Exit


@pytest.fixture
def runs(tmp_path):
    """A directory with a run of each end: ``done``, ``broken``, ``held`` (failed, but a process is in it), ``open``."""
    ends = {"done": "finished", "broken": "failed", "held": "failed", "open": ""}
    for name, status in ends.items():
        events = [{"event": "run_start", "name": name}, {"event": "step", "step": 3, "loss": 1.0}]
        events += [{"event": "run_end", "status": status}] if status else []
        (tmp_path / name / "control").mkdir(parents=True)
        (tmp_path / name / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    with (tmp_path / "held" / "control" / "lock-0").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield tmp_path


def names(directory):
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


def test_failed_runs_are_listed_then_moved_then_brought_back_and_a_held_one_is_left(ernie, runs):
    code, out, _ = ernie("runs", "clean", runs)
    assert code == 0
    assert "broken" in out
    assert "done" not in out
    assert "held" not in out
    assert "nothing was moved" in out
    assert names(runs) == ["broken", "done", "held", "open"]

    before = (runs / "broken" / "events.jsonl").read_bytes()
    assert ernie("runs", "clean", runs, "--yes")[0] == 0
    assert names(runs) == ["done", "held", "open"]
    listed = ernie("runs", "restore", "--from", runs)[1].splitlines()
    name = listed[1].split()[0]
    assert ernie("runs", "restore", name, "--from", runs)[0] == 0
    assert (runs / "broken" / "events.jsonl").read_bytes() == before


def test_other_ends_and_ages_are_asked_for(ernie, runs):
    os.utime(runs / "open" / "events.jsonl", (0, 0))
    everything = [word for state in ("failed", "finished", "interrupted") for word in ("--state", state)]
    assert ernie("runs", "clean", runs, *everything, "--older-than", "9", "--yes")[0] == 0
    assert names(runs) == ["broken", "done", "held"]
    code, _, errors = ernie("runs", "clean", runs, "--state", "running")
    assert code == Exit.USAGE
    assert "expect" in errors


def test_a_place_that_is_taken_and_a_name_that_is_not_there_are_errors(ernie, runs):
    ernie("runs", "clean", runs, "--yes")
    name = ernie("runs", "restore", "--from", runs)[1].splitlines()[1].split()[0]
    (runs / "broken").mkdir()
    for wrong, why in ((name, "is taken"), ("nothing", "not in the trash")):
        code, _, errors = ernie("runs", "restore", wrong, "--from", runs)
        assert code == Exit.USAGE
        assert why in errors
