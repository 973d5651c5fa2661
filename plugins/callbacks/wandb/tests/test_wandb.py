"""The callback's files are read back as wandb's records, after sessions of a run that was stopped and continued."""

import json
import signal
import sys
import time
from contextlib import suppress
from functools import partial

import pytest
from erniecore_conformance import FakeRun
from erniecore_wandb.config import Config
from erniecore_wandb.plugin import plugin
from logged_sessions import asked_by_a_session, log_session, step

from erniecore.api import EnvironmentFault

pytest.importorskip("wandb", reason="`make test-clients` has it")

session = partial(log_session, plugin)


def records(file):
    """The records of a file of wandb; of one that is being written, those that are whole.

    Read by swanlab: wandb's own reader is not written in Python.
    """
    from swanlab.converter.wb.wbdatastore import DataStoreTruncatedError, WBDataStoreReader
    from wandb.proto import wandb_internal_pb2

    found = []
    with suppress(DataStoreTruncatedError), WBDataStoreReader() as store:
        store.open(file)
        while (data := store.scan()) is not None:
            found.append(wandb_internal_pb2.Record.FromString(data))
    return found


def ended_records(file):
    """The same, once the run has ended: wandb's process still writes when ``finish`` has returned."""
    deadline = time.monotonic() + 60
    while True:
        found = records(file)
        if any(record.HasField("exit") for record in found):
            return found
        assert time.monotonic() < deadline, f"{file} has no record of the end of its run"
        time.sleep(0.05)


def sessions(directory):
    """(name, group, settings, curves) of each run of wandb, by name."""
    found = []
    for file in directory.glob("wandb/offline-run-*/run-*.wandb"):
        curves, name, group, settings = {}, "", "", {}
        for record in ended_records(file):
            if record.HasField("run"):
                name, group = record.run.display_name or name, record.run.run_group or group
                settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            items = [(item.key or "/".join(item.nested_key), item.value_json) for item in record.history.item]
            at = dict(items).get("_step")
            for key, value in items:
                if not key.startswith("_"):
                    curves.setdefault(key, {})[int(at)] = json.loads(value)
        found.append((name, group, settings, curves))
    return sorted(found, key=lambda one: one[0])


def test_sessions_have_the_metrics_of_the_events_and_the_settings_and_one_group(tmp_path, capfd):
    out = tmp_path / "mine"
    session(out, step(1, lr=0.5), {"event": "eval", "step": 1, "loss": 2.0}, step(2, grad_norm=float("nan")))
    session(out, step(2, loss=0.25), done=1)
    [first, second] = sessions(out / "wandb")
    assert first[:2] == ("mine", "mine")
    assert second[:2] == ("mine-from-step-00000001", "mine")
    assert first[2]["train"]["max_steps"] == json.loads(FakeRun(out).settings.model_dump_json())["train"]["max_steps"]
    assert first[3] == {"train/loss": {1: 1.0, 2: 0.5}, "train/lr": {1: 0.5}, "eval/loss": {1: 2.0}}
    assert second[3] == {"train/loss": {2: 0.25}}
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_and_errors_are_handled_as_before(tmp_path):
    before = signal.getsignal(signal.SIGINT), sys.excepthook
    run = FakeRun(tmp_path, callbacks={"wandb": Config()})
    plugin.ernie_run_start(run=run)
    during = signal.getsignal(signal.SIGINT), sys.excepthook
    plugin.ernie_run_end(run=run)
    assert before == during == (signal.getsignal(signal.SIGINT), sys.excepthook)


def test_online_without_an_account_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(EnvironmentFault, match="wandb could not begin a run") as caught:
        session(tmp_path / "run", mode="online")
    assert "wandb login" in caught.value.fix


def test_nobody_is_asked_for_anything(tmp_path):
    """Not even what the library tells its maker about its use."""
    assert asked_by_a_session("wandb", tmp_path / "run") == []
