"""schemathesis asks for whatever the OpenAPI document allows and forbids: no answer that the document does not have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import KEY, Server

SETTINGS = Path(__file__).with_name("schemathesis.toml")
#: cases of each kind and route beyond those that cover the document
CASES = 8


@pytest.fixture(scope="module")
def small(home):
    """A server whose answers are short, as its context is."""
    found = Server(home / "roomy" / "model", "tiny", home / "small.log", "context=48", "max_choices=4", key=KEY)
    yield found
    assert "Traceback" not in found.stop()


def test_every_answer_is_in_the_document(small, tmp_path):
    program = Path(sys.executable).with_name("schemathesis")
    words = [
        program, "--config-file", SETTINGS, "run", f"{small.url.removesuffix('/v1')}/openapi.json",
        "--header", f"Authorization: Bearer {KEY}", "--phases", "coverage,fuzzing", "--max-examples", CASES,
        "--checks", "all", "--exclude-checks", "ignored_auth,missing_required_header", "--warnings", "off",
        "--no-color", "--generation-database", "none",
    ]  # fmt: skip
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, cwd=tmp_path, env={**os.environ})
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert "10 selected / 10 total" in done.stdout  # the routes that the server has
