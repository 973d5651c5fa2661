"""The callback's files are read back with SwanLab's own reader, after sessions of a run that was stopped and continued."""

import signal
import sys
from functools import partial

import pytest
from erniecore_conformance import FakeRun
from erniecore_swanlab.config import Config
from erniecore_swanlab.plugin import plugin
from logged_sessions import asked_by_a_session, log_session, step

from erniecore.api import EnvironmentFault

pytest.importorskip("swanlab", reason="`make test-clients` has it")

session = partial(log_session, plugin)


def sessions(directory):
    """(name, group, curves) of each experiment, by name."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    found = []
    for file in directory.glob("run-*/run-*.swanlab"):
        reader, curves, name, group = DataStoreReader(), {}, "", ""
        reader.open(file)
        for data in reader:
            record = Record.FromString(data)
            if record.HasField("start"):
                name, group = record.start.name, record.start.group
            if record.HasField("scalar"):
                curves.setdefault(record.scalar.key, {})[record.scalar.step] = record.scalar.value.number
        reader.close()
        found.append((name, group, curves))
    return sorted(found, key=lambda one: one[0])


def test_sessions_have_the_metrics_of_the_events_and_one_group(tmp_path, capfd):
    out = tmp_path / "mine"
    session(out, step(1, lr=0.5), {"event": "eval", "step": 1, "loss": 2.0}, step(2, grad_norm=float("nan")))
    session(out, step(2, loss=0.25), done=1)
    assert sessions(out / "swanlab") == [
        ("mine", "mine", {"train/loss": {1: 1.0, 2: 0.5}, "train/lr": {1: 0.5}, "eval/loss": {1: 2.0}}),
        ("mine-from-step-00000001", "mine", {"train/loss": {2: 0.25}}),
    ]
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_and_errors_are_handled_as_before(tmp_path):
    before = signal.getsignal(signal.SIGINT), sys.excepthook
    run = FakeRun(tmp_path, callbacks={"swanlab": Config()})
    plugin.ernie_run_start(run=run)
    during = signal.getsignal(signal.SIGINT), sys.excepthook
    plugin.ernie_run_end(run=run)
    assert before == during == (signal.getsignal(signal.SIGINT), sys.excepthook)


def test_online_without_an_account_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("SWANLAB_ROOT", str(tmp_path / "none"))
    monkeypatch.setenv("SWANLAB_API_HOST", "http://127.0.0.1:9")
    with pytest.raises(EnvironmentFault, match="swanlab could not begin an experiment") as caught:
        session(tmp_path / "run", mode="online")
    assert "swanlab login" in caught.value.fix


def test_nobody_is_asked_for_anything(tmp_path):
    """Not even what the library tells its maker about its use."""
    assert asked_by_a_session("swanlab", tmp_path / "run") == []
