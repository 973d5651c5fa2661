"""A process that hangs says where it is and ends."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from erniecore.engine.process_group import SingleProcess
from erniecore.engine.training.watchdog import Watchdog
from erniecore.errors import Exit

STUCK = """
import sys, time
from pathlib import Path
from erniecore.engine.training.watchdog import Watchdog, end_process
from erniecore.engine.process_group import SingleProcess
out = Path(sys.argv[1])
watchdog = Watchdog(out, 0.2, SingleProcess(), end_process(out / "control" / "end.json"))

def a_callback_that_sleeps():
    time.sleep(1000)

with watchdog.watching():
    watchdog.heartbeat("in step 7")
    a_callback_that_sleeps()
"""


@pytest.fixture
def out(tmp_path):
    for name in ("logs", "control"):
        (tmp_path / name).mkdir()
    return tmp_path


def watched(out, limit, during, ranks=None):
    """Errors that would have ended the process while ``during(watchdog)`` ran."""
    ended = []
    watchdog = Watchdog(out, limit, ranks or SingleProcess(), ended.append)
    with watchdog.watching():
        during(watchdog)
    return ended


def test_a_stuck_process_ends_with_its_stacks_and_what_it_did(out):
    done = subprocess.run([sys.executable, "-c", STUCK, str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == Exit.ENVIRONMENT, done.stderr
    record = json.loads((out / "control" / "end.json").read_text())
    assert record["fields"]["code"] == "ERN-E024"
    assert record["fields"]["where"] == "rank 0, in step 7"
    assert "no progress for" in done.stderr
    stacks = (out / "logs" / "rank-0.stacks").read_text()
    assert "in step 7 since" in stacks
    assert "a_callback_that_sleeps" in stacks


def test_who_beats_or_rests_or_has_no_limit_lives(out):
    def heartbeats(watchdog):
        for _ in range(20):
            watchdog.heartbeat("on")
            time.sleep(0.05)

    def rests(watchdog):
        with watchdog.paused():
            time.sleep(1.0)

    assert watched(out, 0.5, heartbeats) == []
    assert watched(out, 0.3, rests) == []
    assert watched(out, 0.0, lambda watchdog: time.sleep(0.5)) == []


def test_a_rank_that_waits_for_another_tells_its_stacks_but_does_not_end(out, monkeypatch):
    class Waits(SingleProcess):
        waiting = "all_reduce with rank 1"

    monkeypatch.setattr("erniecore.engine.training.watchdog.LINGER", 0.05)
    assert watched(out, 0.2, lambda watchdog: time.sleep(1.0), Waits()) == []
    assert "in all_reduce with rank 1" in (out / "logs" / "rank-0.stacks").read_text()


@pytest.mark.parametrize("missing", ["directory", "disk"])
def test_stacks_that_cannot_be_written_are_dropped_with_a_reason(out, missing):
    file = out / "logs" / "rank-0.stacks"
    if missing == "directory":
        file.mkdir()
    else:
        file.symlink_to("/dev/full")
    faults = []

    def during(watchdog):
        faults.append(watchdog.fault)
        watchdog.write_stacks()

    assert watched(out, 60.0, during) == []
    assert [bool(fault) for fault in faults] == [missing == "directory"]


def test_a_rank_gives_its_stacks_when_another_one_asks(out):
    def asked(watchdog):
        time.sleep(0.1)
        Path(out / "control" / "stacks").write_text("now")
        time.sleep(1.5)

    watched(out, 60.0, asked)
    assert "waits for no other rank" in (out / "logs" / "rank-0.stacks").read_text()
