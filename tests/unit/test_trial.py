"""Plugins of others that nobody named: whatever their import does, the process goes on without them."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from hostile_plugins import HOSTILE, install

from erniecore import registry, trial


def loaded():
    return [plugin.name for plugin in registry.loadable("format") if plugin.name in {*HOSTILE, "good"}]


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(trial, "SECONDS", 3.0)  # enough for `good` on a busy machine


@pytest.mark.usefixtures("short")
def test_what_hurts_is_left_out_and_named_once(site, capfd):
    install(site, *HOSTILE, "good")
    assert loaded() == loaded() == ["good"]
    out, err = capfd.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == sum(bool(said) for _, said in HOSTILE.values())
    for name, (_, said) in HOSTILE.items():
        line = next((line for line in lines if f"'{name}'" in line), "")
        assert bool(line) == bool(said)
        if said:
            assert line.startswith(f"warning: format plugin '{name}' of dist-{name} 1.0 is left out: ")
            assert said in line
            assert line.endswith(f"pip uninstall dist-{name}")


def test_nothing_is_left_of_the_copy(site):
    started = "import subprocess, sys\nchild = subprocess.Popen(['sleep', '997'])\nraise KeyboardInterrupt"
    site.add("dist-parent", {"erniecore.formats": {"parent": "fmt_parent:plugin"}}, {"fmt_parent.py": started})
    before = {pid for pid in os.listdir("/proc") if pid.isdigit() and _parent(pid) == os.getpid()}
    assert loaded() == []
    while any(_words(pid) == ["sleep", "997"] for pid in os.listdir("/proc") if pid.isdigit()):
        time.sleep(0.01)
    ours = {pid for pid in os.listdir("/proc") if pid.isdigit() and _parent(pid) == os.getpid()}
    assert ours == before


def _parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return int(stream.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _words(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as stream:
            return stream.read().split("\0")[:-1]
    except OSError:
        return []


def test_plugins_of_ours_need_no_trial(site, monkeypatch):
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a copy"))
    assert "messages" in [plugin.name for plugin in registry.loadable("format")]


def test_what_is_named_is_imported_here(site):
    install(site, "raises")
    with pytest.raises(registry.PluginBroken, match="ValueError: x"):
        registry.load("format", "raises")


def test_the_users_interrupt_is_not_the_plugins(site):
    install(site, "hang")
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        loaded()
    timer.join()


COMMANDS = {
    "plugins": (["plugins", "--kind", "format"], 0),
    "doctor": (["doctor"], None),
    "data": (["data", "check", "rows.jsonl"], 0),
    "run": (["run", "--method", "sft", "--data", "rows.jsonl", "--model", "missing", "--dry-run"], None),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_go_on(site, tmp_path, command):
    install(site, "base", "interrupt", "exit", "killed", "quit", "good")
    (tmp_path / "rows.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
    )
    words, code = COMMANDS[command]
    done = subprocess.run(
        [sys.executable, "-m", "erniecore", *words],
        cwd=tmp_path,
        env=site.environ(COLUMNS="200"),
        capture_output=True,
        text=True,
    )
    assert done.returncode not in (1, 130, -9, -2), done.stderr
    assert code in (None, done.returncode), done.stdout + done.stderr
    assert done.stdout + done.stderr  # not a silent end
    if command == "doctor":
        assert done.stdout.count("pip uninstall dist-exit") == 1
        assert "its import ends the process (exit 0)" in done.stdout
    if command == "data":
        assert done.stderr.count("left out") == 4
        assert "1 row" in done.stdout
    if command == "plugins":
        assert "left out" not in done.stderr
