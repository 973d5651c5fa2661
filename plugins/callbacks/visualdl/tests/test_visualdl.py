"""The callback's files are read back with VisualDL's own reader, and by its real server."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from erniecore_catalog import install_command
from erniecore_visualdl.plugin import Config, plugin

from erniecore.api import EnvironmentFault

pytestmark = pytest.mark.skipif(find_spec("visualdl") is None, reason="visualdl is not installed")


class View:
    """As much of a run as the callback sees."""

    def __init__(self, out, *, step=0, is_main=True, **options):
        self.out, self.step, self.is_main = out, step, is_main
        text = '{"name": "settings of the run"}'
        self.settings = SimpleNamespace(
            callbacks={"visualdl": Config(**options)}, model_dump_json=lambda indent=None: text
        )


def write(run, *events):
    plugin.ernie_run_start(run=run)
    for event in events:
        plugin.ernie_event(run=run, event=event)
    plugin.ernie_run_end(run=run)


def step(number, **fields):
    return {"event": "step", "time": 1.0, "step": number, "loss": 1.0 / number, "lr": 1e-3, **fields}


def read(directory):
    """tag -> [(step, value)] of the only log file in ``directory``."""
    from visualdl import LogReader

    [file] = directory.glob("*vdlrecords*")
    reader = LogReader(file_path=str(file))
    names = [name.replace("%", "/") for name in reader.get_tags().get("scalar", [])]
    scalars = {name: [(r.id, round(r.value, 6)) for r in reader.get_data("scalar", name)] for name in names}
    texts = {
        name: reader.get_data("text", name)[0].text.encoded_text_string for name in reader.get_tags().get("text", [])
    }
    return scalars, texts


def test_steps_and_evaluations_are_read_back(tmp_path):
    run = View(tmp_path)
    write(run, step(1, grad_norm=0.5, tokens_per_s=100), {"event": "eval", "step": 1, "loss": 2.0}, step(2))
    scalars, _ = read(tmp_path / "visualdl")
    assert scalars == {
        "train/loss": [(1, 1.0), (2, 0.5)], "train/lr": [(1, 0.001), (2, 0.001)],
        "train/grad_norm": [(1, 0.5)], "train/tokens_per_s": [(1, 100.0)], "eval/loss": [(1, 2.0)],
    }  # fmt: skip


def test_settings_are_logged_as_text(tmp_path):
    write(View(tmp_path))
    assert "settings of the run" in read(tmp_path / "visualdl")[1]["settings"]


def test_only_every_nth_step_but_every_evaluation(tmp_path):
    run = View(tmp_path, every=2, directory="curves")
    write(run, step(1), step(2), step(3), {"event": "eval", "step": 3, "loss": 2.0}, step(4))
    scalars, _ = read(tmp_path / "curves")
    assert [n for n, _ in scalars["train/loss"]] == [2, 4]
    assert scalars["eval/loss"] == [(3, 2.0)]


def test_numbers_that_are_not_finite_and_other_fields_are_left_out(tmp_path):
    event = step(1, loss=float("nan"), note="text")
    write(View(tmp_path), event, {"event": "warning", "message": "x"}, step(2, **{"moe/load %": 3}))
    scalars, _ = read(tmp_path / "visualdl")
    assert sorted(scalars) == ["train/loss", "train/lr", "train/moe/load "]
    assert scalars["train/loss"] == [(2, 0.5)]


def test_a_run_that_continues_writes_beside_the_first_part(tmp_path):
    write(View(tmp_path), step(1))
    write(View(tmp_path, step=1), step(2))
    assert read(tmp_path / "visualdl" / "from-step-00000001")[0]["train/loss"] == [(2, 0.5)]
    assert read(tmp_path / "visualdl")[0]["train/loss"] == [(1, 1.0)]


def test_nothing_is_printed(tmp_path, capfd):
    write(View(tmp_path), step(1))
    assert capfd.readouterr() == ("", "")


def test_other_ranks_write_nothing(tmp_path):
    write(View(tmp_path, is_main=False), step(1))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_an_error_with_the_install_line(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "erniecore_visualdl.writer", raising=False)
    monkeypatch.setattr("erniecore_visualdl.writer", None, raising=False)
    monkeypatch.delattr("erniecore_visualdl.writer")
    monkeypatch.setitem(sys.modules, "visualdl", None)
    run = View(tmp_path)
    with pytest.raises(EnvironmentFault) as caught:
        plugin.ernie_run_start(run=run)
    assert caught.value.next == install_command("visualdl", of="erniecore-visualdl")
    plugin.ernie_run_end(run=run)


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "visualdl").write_text("in the way")
    with pytest.raises(EnvironmentFault, match="cannot write the log of the callback visualdl"):
        plugin.ernie_run_start(run=View(tmp_path))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(url, server):
    """Status and body, once the server listens; fails with the server's log when it has ended instead."""
    request = urllib.request.Request(url, headers={"Accept-Language": "en"})  # VisualDL fails without the header
    while server.poll() is None:
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:
            time.sleep(0.1)
    raise AssertionError(server.stdout.read())


def test_the_real_server_shows_the_run(tmp_path):
    write(View(tmp_path), step(1), step(2))
    port = free_port()
    command = [sys.executable, "-m", "visualdl.server.app", "--logdir", str(tmp_path), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--disable-telemetry"]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment) as server:
        try:
            status, page = ask(f"http://127.0.0.1:{port}/app/index", server)
            assert status == 200
            assert b"<title>VisualDL</title>" in page
            _, body = ask(f"http://127.0.0.1:{port}/app/api/scalar/tags", server)
            data = json.loads(body)["data"]
            assert data["tags"] == [["train/loss", "train/lr"]]
            query = urllib.parse.urlencode({"run": data["runs"][0], "tag": "train/loss"})
            _, body = ask(f"http://127.0.0.1:{port}/app/api/scalar/list?{query}", server)
            assert [row[1:] for row in json.loads(body)["data"]] == [[1, 1.0], [2, 0.5]]
        finally:
            server.terminate()
            server.communicate()
