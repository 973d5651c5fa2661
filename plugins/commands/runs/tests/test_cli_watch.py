"""``ernie runs watch``: rows from the ends of the events, again at each change, until all runs have ended."""

import fcntl
import io
import json
import sys

import pytest
from erniecore_runs import latest, watching
from event_runs import ernie as ernie  # the fixtures
from event_runs import run_dir as run_dir

from erniecore.errors import Exit

START = {"event": "run_start", "name": "other", "total_steps": 50, "plugins": {"method": "sft"}}
STEP = {"event": "step", "step": 7, "loss": 2.5, "tokens_per_s": 1234.4, "eta": 125.0, "peak_memory": 2 << 20}


def add(directory, *events):
    directory.mkdir(exist_ok=True)
    with (directory / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


@pytest.fixture
def going(run_dir):
    """A second run beside the first, with its lock taken by this process."""
    directory = run_dir.parent / "second"
    add(directory, START, STEP)
    (directory / "control").mkdir()
    with (directory / "control" / "lock-0").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory


def test_once(ernie, run_dir, going):
    code, out, _ = ernie("runs", "watch", run_dir, going, "--once")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["run", "state", "step", "loss", "tokens/s", "left", "memory"],
        [str(run_dir), "finished", "30", "0.1000"],
        [str(going), "running", "7/50", "2.5000", "1,234", "2m", "05s", "2.0", "MiB"],
    ]


def test_a_directory_of_runs_and_a_run_in_it_are_each_run_once(ernie, run_dir, going):
    found = json.loads(ernie("runs", "watch", run_dir.parent, going, "--once", "--json")[1])
    assert sorted((row["path"], row["state"], row["step"]) for row in found) == [
        (str(run_dir), "finished", 30),
        (str(going), "running", 7),
    ]


def test_a_row_for_each_change_until_all_runs_have_ended(run_dir, going):
    seen = watching.changes([run_dir, going], 0.0)
    assert [row["state"] for row in next(seen)] == ["finished", "running"]
    add(going, {**STEP, "step": 8, "loss": float("nan")})
    assert [(row["step"], row["loss"]) for row in next(seen)] == [(30, pytest.approx(0.1)), (8, None)]
    add(going, {"event": "run_end", "status": "failed"})
    assert [row["state"] for row in next(seen)] == ["finished", "failed"]
    assert list(seen) == []


def test_what_has_ended_is_shown_and_the_command_ends(ernie, run_dir):
    code, out, _ = ernie("runs", "watch", run_dir)
    assert (code, len(out.splitlines())) == (0, 2)
    (line,) = ernie("runs", "watch", run_dir, "--json")[1].splitlines()
    assert [row["state"] for row in json.loads(line)] == ["finished"]


def test_a_table_stays_in_its_place_on_a_terminal(monkeypatch, run_dir, going):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    seen = watching.rows([going])
    watching.show_changes([seen, [{**seen[0], "step": 8, "path": "evil\x1b[2J"}]])
    text = terminal.getvalue()
    assert text.index("7/50") < text.index("\x1b[1A") < text.index("8/50"), "the cursor goes up before the second table"
    assert "\x1b[2J" not in text


def test_ends_of_a_long_file_are_enough(tmp_path):
    add(tmp_path / "long", {**START, "time": 5.0}, *({**STEP, "step": i} for i in range(2000)))
    found = latest.facts(tmp_path / "long")
    assert (found["started"], found["step"], found["name"], found["total"]) == (5.0, 1999, "other", 50)


def test_no_such_directory(ernie, tmp_path):
    code, _, errors = ernie("runs", "watch", tmp_path / "nowhere", "--once")
    assert code == Exit.USAGE
    assert "no such directory" in errors
