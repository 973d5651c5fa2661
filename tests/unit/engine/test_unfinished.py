"""Which run a command without ``--out`` means, and what two equal commands at once do."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from erniecore_checkpoint.save import save_checkpoint
from talker import talker as talker  # the fixture

from erniecore.data import shards
from erniecore.engine import entry
from erniecore.engine.preparation import rundir
from erniecore.engine.preparation.unfinished import choose
from erniecore.errors import CheckpointError, Exit

SETTINGS = {"run": {"seed": 1, "resume": "auto"}, "train": {"learning_rate": 0.1}, "log": {"every": 1}}
#: seconds since the epoch at which the runs of these tests began
BEGAN = 1_700_000_000.0


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path("runs")


def begun(root, name, settings=SETTINGS, *, status="", age=0.0, steps=(), data=()):
    """A run that began at BEGAN and wrote its last event ``age`` seconds ago; with checkpoints of ``steps``."""
    out = root / name
    (out / "control").mkdir(parents=True)
    rundir.record_settings(out, settings)
    events = [{"event": "run_start", "time": BEGAN}, *([{"event": "run_end", "status": status}] if status else [])]
    (out / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    files = [shards.content_of(path) for path in data]
    for step in steps:
        save_checkpoint(out / "ckpt", step, {}, {"format": rundir.STATE_FORMAT, "data": {"files": files}})
    os.utime(out / "events.jsonl", (2 * BEGAN - age,) * 2)
    return out


@pytest.fixture
def rows(tmp_path):
    """A data file that nobody has touched since long before the runs began."""
    path = tmp_path / "rows.jsonl"
    path.write_text("{}\n")
    return path


def with_changes(**changes):
    return {section: {**keys, **changes.get(section, {})} for section, keys in SETTINGS.items()}


# ---- one of several


def test_the_first_run_is_new_and_needs_no_words(root):
    chosen = choose(SETTINGS, "fresh")
    assert (chosen.name, chosen.note, chosen.new) == ("fresh", "", True)


def test_the_newest_unfinished_run_of_the_same_settings_goes_on(root):
    begun(root, "old", age=30)
    begun(root, "stopped", age=20, status="preempted")
    begun(root, "done", status="finished")
    begun(root, "other", with_changes(train={"learning_rate": 0.2}), age=10)
    chosen = choose(with_changes(log={"every": 5}), "fresh")  # what is shown makes no other run
    assert (chosen.name, chosen.new) == ("stopped", False)
    assert "continues runs/stopped" in chosen.note
    assert chosen.note.endswith("; the newest of 2, then runs/old")


@pytest.mark.parametrize("resume", ["never", "runs/old/ckpt/step-00000001"])
def test_a_command_that_names_its_beginning_is_a_new_run(root, resume):
    begun(root, "old")
    assert choose(with_changes(run={"resume": resume}), "fresh").new


def test_a_name_that_is_taken_gets_a_number(root):
    begun(root, "fresh", status="finished")
    begun(root, "fresh-2", status="finished")
    assert choose(SETTINGS, "fresh").name == "fresh-3"


def test_other_settings_are_named(root):
    begun(root, "other", with_changes(train={"learning_rate": 0.2}))
    chosen = choose(SETTINGS, "fresh")
    assert chosen.new
    assert "runs/other has other settings (train.learning_rate: 0.2 -> 0.1)" in chosen.note


def test_a_run_that_has_to_be_there_is_missed_with_the_reasons(root):
    begun(root, "other", with_changes(train={"learning_rate": 0.2}))
    with pytest.raises(CheckpointError, match="no unfinished run") as caught:
        choose(with_changes(run={"resume": "must"}), "fresh")
    assert "runs/other: has other settings" in caught.value.found


@pytest.mark.parametrize("text", ["", "{", "[]", '{"settings": 3}', '{"settings": null}'])
def test_a_record_that_says_nothing_is_no_run_of_ours(root, text):
    out = begun(root, "torn")
    (out / rundir.SETTINGS).write_text(text)
    chosen = choose(SETTINGS, "fresh")
    assert chosen.new
    assert "runs/torn" in chosen.note


def test_a_run_in_use_is_left_alone(root):
    out = begun(root, "busy")
    with rundir.locked(out, "lock-run"):
        chosen = choose(SETTINGS, "fresh")
    assert chosen.new
    assert "runs/busy is in use by another process" in chosen.note
    assert choose(SETTINGS, "fresh").name == "busy"


# ---- a directory whose command ended before it wrote its settings

NOW = "20260102-030405-sft-ernie45"


#: ``ernie`` with the arguments behind the moment, at which it ends
STOPPED = """
import os, signal, sys
from pathlib import Path
from erniecore.__main__ import main
from erniecore.engine.preparation import rundir

moment, how, *sys.argv = sys.argv[1:]
owner = Path if moment == "mkdir" else rundir
real = getattr(owner, moment)

def end(*given, **more):
    if moment == "mkdir":
        real(*given, **more)
        if given[0].name != "logs":
            return
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)

setattr(owner, moment, end)
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("moment", "how"),
    [
        ("mkdir", "interrupted twice"),  # right after ``logs`` is made
        ("_take", "killed"),
        ("record_settings", "interrupted twice"),
    ],
    ids=["made", "locked", "settings"],
)
def test_a_directory_that_did_not_become_a_run_is_taken_by_the_next_command(talker, root, warm, moment, how):
    """``ernie run`` ends between making the directory and writing the settings; the next command, a second later, leaves
    one directory, which is the run."""
    said = f"--model {talker}/model --method sft --data {talker}/rows.jsonl data.max_seq_len=96 train.max_steps=1"
    arguments = ["run", *said.split(), "train.batch_size=1", "log.report=false"]
    outcome = subprocess.run([sys.executable, "-c", STOPPED, moment, how, "ernie", *arguments], capture_output=True)
    assert outcome.returncode in (Exit.INTERRUPTED, Exit.PREEMPTED, -signal.SIGKILL), outcome
    (left,) = root.iterdir()
    assert not (left / rundir.SETTINGS).exists()
    time.sleep(1.0)  # another name from the clock
    following = warm.start(arguments, Path.cwd(), os.environ)
    said = following.communicate()
    assert following.returncode == Exit.OK, said
    assert list(root.iterdir()) == [left]
    assert (left / "model" / "config.json").is_file()


@pytest.mark.parametrize("kept", ["control/stop", "notes.txt", "ckpt/step-00000001/state.json", "control/run.json"])
def test_a_directory_that_holds_something_is_not_taken(root, kept):
    file = root / "20260102-030000-sft-ernie45" / kept
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    assert choose(SETTINGS, NOW).name == NOW


def test_a_directory_of_another_kind_of_run_or_with_a_name_is_not_taken(root):
    for name in ("20260102-030000-dpo-ernie45", "mine", "mine-sft-ernie45"):
        (root / name / "control").mkdir(parents=True)
    assert choose(SETTINGS, NOW).name == NOW


def test_a_directory_that_another_command_has_just_made_is_not_taken(root):
    made = root / "20260102-030000-sft-ernie45"
    with rundir.locked(made, "lock-run"):
        assert choose(SETTINGS, NOW).name == NOW
    assert choose(SETTINGS, NOW).name == made.name


# ---- changed data


def test_the_same_content_goes_on_whenever_it_was_written(root, rows):
    begun(root, "old", steps=(1, 2), data=(rows,))
    assert choose(SETTINGS, "fresh").name == "old"


@pytest.mark.parametrize("saved_later", [False, True], ids=["after the checkpoint", "before the last checkpoint"])
def test_changed_data_are_another_run(root, rows, saved_later):
    out = begun(root, "old", steps=(1,), data=(rows,))
    rows.write_text('{"more": 1}\n')
    if saved_later:  # a run that is told to stop saves, long after it has read its data
        os.utime(out / "ckpt" / "step-00000001", (2 * BEGAN,) * 2)
    chosen = choose(SETTINGS, "fresh")
    assert chosen.new
    assert f"runs/old has seen other data ({rows} has changed)" in chosen.note


def test_data_that_are_gone_are_told_where_they_are_read(root, rows):
    begun(root, "old", steps=(1,), data=(rows,))
    rows.unlink()
    assert choose(SETTINGS, "fresh").name == "old"


def test_a_damaged_checkpoint_leaves_the_one_before_it(root, rows):
    out = begun(root, "old", steps=(1, 2), data=(rows,))
    (out / "ckpt" / "step-00000002" / "state.json").write_text("{")
    rows.write_text("[]\n")
    assert choose(SETTINGS, "fresh").new


def test_data_of_several_runs_are_read_once(root, rows, monkeypatch):
    for name in ("first", "second", "third"):
        begun(root, name, steps=(1,), data=(rows,))
    read, content_of = [], shards.content_of
    monkeypatch.setattr(shards, "content_of", lambda path: [read.append(path), content_of(path)][1])
    assert "the newest of 3" in choose(SETTINGS, "fresh").note
    assert read == [rows]


# ---- two commands at once


class Command:
    """What a command does about its run; ``meanwhile(out)`` happens between its choice and its lock, the first time."""

    def __init__(self, maker, meanwhile):
        self.settings = maker.settings(run={"out": ""})
        self.meanwhile, self.tried, self.notes = meanwhile, [], []

    def make(self, name):
        out = Path("runs") / name
        if not self.tried:
            self.meanwhile(out)
        self.tried.append(name)
        return SimpleNamespace(out=out, device=SimpleNamespace(preflight=lambda: None))

    def chosen(self):
        with ExitStack() as locks:
            out = entry._chosen(self.settings, self.make, locks, self.notes.append).out
            assert rundir.in_use(out)
        assert not rundir.in_use(out)
        return out


def test_a_run_that_another_command_has_begun_and_ended_is_not_begun_again(root, maker):
    def other(out):
        begun(root, out.name, command.settings.model_dump(mode="json"), status="finished")

    command = Command(maker, other)
    assert command.chosen().name == command.tried[1] != command.tried[0]


def test_a_run_that_another_command_has_finished_is_not_continued(root, maker):
    def other(out):
        (out / "events.jsonl").write_text('{"event": "run_end", "status": "finished"}\n')

    command = Command(maker, other)
    begun(root, "old", command.settings.model_dump(mode="json"))
    assert command.chosen().name == command.tried[1] != "old"
    assert command.notes == []


def test_a_run_that_another_command_has_taken_is_left_to_it(root, maker):
    with ExitStack() as others:
        command = Command(maker, lambda out: others.enter_context(rundir.locked(out, "lock-run")))
        begun(root, "old", command.settings.model_dump(mode="json"))
        assert command.chosen().name == command.tried[1] != "old"
    assert "runs/old is in use by another process" in command.notes[0]
