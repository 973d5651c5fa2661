"""A run directory with events and nothing else, and commands that read it."""

import json

import pytest

from erniecore.cli.app import main


@pytest.fixture
def ernie(capsys):
    """Run a command; returns (exit code, stdout, stderr)."""

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def run_dir(tmp_path):
    """A run with a few events."""
    events = [{"event": "run_start", "name": "demo"}]
    events += [{"event": "step", "step": i, "loss": 3.0 / i, "lr": 0.1} for i in range(1, 31)]
    events += [{"event": "run_end", "status": "finished", "steps": 30, "tokens": 9, "seconds": 1.5}]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n")
    return tmp_path / "run"
