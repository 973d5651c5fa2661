"""Servers for real clients: ``ernie serve`` of the environment ``$ERNIE_ENVIRONMENT`` (``.venv``) on tiny models made here.

The clients have an environment of their own, in which nothing of this repository is installed.
"""

import os
import subprocess
from pathlib import Path

import pytest

KEY = "sk-a-key-for-clients-0123"
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / os.environ.get("ERNIE_ENVIRONMENT", ".venv") / "bin"
#: without a proxy, accounts or settings of who runs the tests
CLEAN = {
    **{
        name: value
        for name, value in os.environ.items()
        if not name.lower().endswith("_proxy") and not name.startswith(("ERNIE_", "OPENAI_"))
    },
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
}


def ernie(*words, **options):
    """Run a program of the environment that has erniecore; its standard output."""
    done = subprocess.run(
        [PROGRAMS / words[0], *map(str, words[1:])], cwd=ROOT, env=CLEAN, capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Server:
    """``ernie serve`` as a process; ``url`` ends with ``/v1``."""

    def __init__(self, directory, name, log, *settings, key=""):
        words = ["serve", "--backend", "openai", "--model", directory, f"name={name}", "port=0", *settings]
        self.log, self.directory, self.name, self.key = log, Path(directory), name, key
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [PROGRAMS / "ernie", *map(str, words)],
                stdout=subprocess.PIPE, stderr=file, text=True, cwd=ROOT, env={**CLEAN, "ERNIE_API_KEY": key},
            )  # fmt: skip
        told = self.process.stdout.readline()
        assert " at " in told, log.read_text()
        self.url = told.split(" at ")[1].split(";")[0]

    def stop(self):
        """End it as an operator does; returns what it said."""
        self.process.terminate()
        code = self.process.wait()
        self.process.stdout.close()
        assert code == 0, self.log.read_text()
        return self.log.read_text()


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """Directory with ``roomy`` and ``thinking``, each with ``model/`` and ``rows.jsonl``."""
    directory = tmp_path_factory.mktemp("models")
    for name, *how in (("roomy", 2048), ("thinking", 2048, "thinking")):
        ernie("python", "tests/helpers/talker.py", directory / name, *how)
    return directory


@pytest.fixture(scope="session")
def server(home):
    """A server with a key, whose queue has room for few."""
    found = Server(home / "roomy" / "model", "tiny", home / "tiny.log", "waiting=8", "rows=4", key=KEY)
    yield found
    said = found.stop()
    assert "Traceback" not in said
    assert KEY not in said


@pytest.fixture(scope="session")
def thinker(home):
    """A server of a model that begins with reasoning."""
    found = Server(home / "thinking" / "model", "thinker", home / "thinker.log")
    yield found
    assert "Traceback" not in found.stop()


@pytest.fixture(scope="session")
def seer(tmp_path_factory):
    """A server of a model that sees; images lie beside its directory."""
    home = tmp_path_factory.mktemp("seer")
    ernie("python", "tests/helpers/seers.py", home)
    found = Server(home / "model", "seer", home / "seer.log")
    yield found
    assert "Traceback" not in found.stop()


@pytest.fixture(scope="session")
def adapters(home):
    """A server of a base with two adapters."""
    base = home / "roomy" / "model"
    places = [home / name for name in ("plain", "loud")]
    for seed, place in enumerate(places):
        ernie("python", "tests/helpers/talker.py", "adapter", base, place, seed)
    options = [word for place in places for word in ("--adapter", f"{place.name}={place}")]
    found = Server(base, "tiny", home / "adapters.log", *options)
    yield found
    assert "Traceback" not in found.stop()


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Clients talk to these servers directly."""
    for name in set(os.environ) - set(CLEAN):
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "*")
