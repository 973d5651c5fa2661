"""The callback's files are read back as TensorBoard reads them, after a real run that was stopped and continued."""

import json
import struct
import sys

import pytest
from erniecore_catalog import install_command
from erniecore_conformance import FakeRun
from erniecore_tensorboard.plugin import Config, plugin
from tensorboardX.proto.event_pb2 import Event, SessionLog

import erniecore
from erniecore.api import EnvironmentFault
from erniecore.api.events import metrics
from erniecore.errors import Preempted


def curves(directory):
    """Name -> {step: value}: the files in the order in which they were begun, without what a later start drops."""
    found = {}
    for file in sorted(directory.glob("events.out.tfevents.*")):
        data, place = file.read_bytes(), 0
        while place < len(data):
            (size,) = struct.unpack_from("<Q", data, place)
            event = Event.FromString(data[place + 12 : place + 12 + size])
            place += 16 + size
            if event.session_log.status == SessionLog.START:
                for points in found.values():
                    for step in [step for step in points if step >= event.step]:
                        del points[step]
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def step(number, **fields):
    return {"event": "step", "time": 1.0, "step": number, "loss": 1.0 / number, **fields}


def session(out, steps, *, end=True, done=0, **options):
    run = FakeRun(out, callbacks={"tensorboard": Config(**options)})
    run.step = done
    plugin.ernie_run_start(run=run)
    for number in steps:
        plugin.ernie_event(run=run, event=step(number))
    if end:
        plugin.ernie_run_end(run=run)
    return run


def test_a_run_has_the_numbers_of_its_events_and_goes_on_with_the_same_curves(talker, tmp_path):
    out = tmp_path / "run"
    words = [
        "model.name=ernie45",
        "method=sft",
        f"model.path={talker / 'model'}",
        f"data.train={talker / 'rows.jsonl'}",
    ]
    words += ["data.max_seq_len=96", "train.max_steps=4", "eval.every=2", f"data.eval={talker / 'rows.jsonl'}"]
    words += ["log.report=false", f"run.out={out}", "callbacks=[tensorboard]", "checkpoint.export=false"]
    with pytest.raises(Preempted):
        erniecore.run(overrides=[*words, "run.until=2"], console="none")
    erniecore.run(overrides=words, console="none")
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    wanted = {}
    for event in events:
        prefix = {"step": "train", "eval": "eval"}.get(event["event"])
        for name, value in metrics(event).items():
            wanted.setdefault(f"{prefix}/{name}", {})[event["step"]] = pytest.approx(value, rel=1e-6)
    assert curves(out / "tensorboard") == wanted
    assert set(wanted["train/loss"]) == {1, 2, 3, 4}
    assert {"train/lr", "train/grad_norm", "train/tokens_per_s", "eval/loss"} <= set(wanted)


def test_what_a_killed_session_had_logged_beyond_its_checkpoint_is_dropped(tmp_path):
    killed = session(tmp_path, [1, 2, 3], end=False)
    plugin.ernie_event(run=killed, event={"event": "checkpoint", "step": 3})  # flushes
    session(tmp_path, [2], done=1)
    assert curves(tmp_path / "tensorboard")["train/loss"] == {1: 1.0, 2: 0.5}
    plugin.ernie_run_end(run=killed)


def test_only_every_nth_step_in_a_directory_of_ones_choice(tmp_path):
    session(tmp_path, [1, 2, 3, 4], every=2, directory="elsewhere")
    assert set(curves(tmp_path / "elsewhere")["train/loss"]) == {2, 4}


def test_a_missing_package_is_an_error_with_the_install_line(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "erniecore_tensorboard.writer", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboardX"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EnvironmentFault) as caught:
        session(tmp_path, [])
    assert caught.value.next == install_command("tensorboardX", of="erniecore-tensorboard")


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "tensorboard").write_text("in the way")
    with pytest.raises(EnvironmentFault, match="cannot write the log of the callback tensorboard"):
        session(tmp_path, [])
