"""Records of runs that are cut, mixed up or written by somebody else: commands that look at a run show what can be shown."""

import json

import pytest
from hostile_files import JSON_TEXTS, SPECIAL, WRONG, assert_refused, shown, special

from erniecore.errors import Exit

pytestmark = pytest.mark.area("records of runs")
EVENTS = [
    {"event": "run_start", "name": "demo"},
    *({"event": "step", "step": i, "loss": 3.0 / i, "lr": 0.1} for i in range(1, 6)),
    {"event": "eval", "step": 5, "loss": 1.0},
    {"event": "run_end", "status": "finished", "steps": 5, "tokens": 9, "seconds": 1.5},
]
COMMANDS = [["runs", "list"], ["runs", "list", "--json"], ["runs", "report"]]
REFUSED = {0, Exit.USAGE, Exit.ENVIRONMENT, Exit.DATA, Exit.CHECKPOINT}


@pytest.fixture
def run_dir(box):
    """A run of events."""
    home = box / "run"
    home.mkdir()
    write(home, EVENTS)
    return home


def write(home, events):
    (home / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("text", JSON_TEXTS)
def test_lines_that_are_no_events_are_left_out(ernie, run_dir, words, text):
    lines = (run_dir / "events.jsonl").read_bytes().split(b"\n")
    (run_dir / "events.jsonl").write_bytes(b"\n".join([*lines[:3], JSON_TEXTS[text], *lines[3:]]))
    assert_refused(ernie(*words, run_dir), {0})


MIXED = [*WRONG, None, 10**399, -(10**399), 1e308, "nan", "inf", "\x1b]0;x\x07", "9" * 300]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("key", ["event", "step", "loss", "lr", "name", "status", "steps", "tokens", "seconds"])
def test_values_of_another_type_in_events(ernie, run_dir, words, key):
    for value in MIXED:
        write(run_dir, [{**event, key: value} for event in EVENTS])
        assert_refused(ernie(*words, run_dir), REFUSED)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("file", ["data_report.json", "resolved.yaml", "skipped_steps.json"])
@pytest.mark.parametrize("text", ["cut", "deep lists", "not UTF-8", "many digits", "list", "NUL"])
def test_files_beside_the_events(ernie, run_dir, words, file, text):
    (run_dir / file).write_bytes(JSON_TEXTS[text])
    assert_refused(ernie(*words, run_dir), {0})


@pytest.mark.parametrize("value", MIXED, ids=shown)
@pytest.mark.parametrize("words", COMMANDS[2:], ids=" ".join)
def test_counts_of_data_of_another_type(ernie, run_dir, words, value):
    for report in (
        value,
        {"rows": value, "kept": value},
        {"train": {"rows": 1, "kept": value, "dropped": {"x": value}}},
    ):
        (run_dir / "data_report.json").write_text(json.dumps(report))
        assert_refused(ernie(*words, run_dir), {0})


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("file", ["events.jsonl", "data_report.json", "resolved.yaml"])
def test_records_that_are_no_files(ernie, run_dir, words, file, kind):
    special(run_dir / file, kind)
    assert_refused(ernie(*words, run_dir), REFUSED)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_endless_record(ernie, run_dir, words):
    with (run_dir / "events.jsonl").open("ab") as file:
        file.truncate(1 << 40)  # a hole
    assert_refused(ernie(*words, run_dir), REFUSED - {0})


@pytest.mark.parametrize("words", COMMANDS[:2], ids=" ".join)
@pytest.mark.parametrize("name", ["\x1b[31mred", "a\rb", "\x9b2J", "n" * 250, "-rf", "<script>"])
def test_names_of_runs_reach_the_terminal_as_text(ernie, run_dir, words, name):
    (run_dir.parent / "runs").mkdir()
    run_dir.rename(run_dir.parent / "runs" / name)
    assert_refused(ernie(*words, run_dir.parent / "runs"), {0})


def test_the_report_has_no_markup_from_files(ernie, run_dir):
    write(run_dir, [{**event, "name": "<script>alert(1)</script>"} for event in EVENTS])
    assert_refused(ernie("runs", "report", run_dir), {0})
    assert "<script>alert" not in (run_dir / "report.html").read_text()
