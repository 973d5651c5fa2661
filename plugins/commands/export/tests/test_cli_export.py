"""The command export: output, JSON, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from erniecore.cli.app import main
from erniecore.errors import Exit


@pytest.fixture
def ernie(capsys):
    """Run a command; returns (exit code, stdout, stderr)."""

    def call(*args):
        code = main([str(word) for word in args])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    from erniecore_text.training import train

    directory = tmp_path_factory.mktemp("tokenizer")
    train(["the quick brown fox jumps over the lazy dog " * 20], 320).save(directory)
    return directory


def test_a_new_model_is_written_and_exported(ernie, tmp_path, tokenizer):
    size = "num_hidden_layers=1,hidden_size=32"
    args = ("--model", "ernie45", "--tokenizer", tokenizer, "--out", tmp_path / "m", "--size", size)
    code, out, _ = ernie("model", "init", *args)
    assert code == 0
    assert "parameters" in out
    code, out, _ = ernie("export", tmp_path / "m", "--to", "hf", "--out", tmp_path / "x", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["path"] == str(tmp_path / "x")
    assert {"config.json", "model.safetensors", "tokenizer.model", "chat_template.jinja"} <= set(report["files"])
    assert ernie("ckpt", "verify", tmp_path / "x")[0] == 0
    command = [sys.executable, "-m", "erniecore", "export", tmp_path / "m", "--to", "hf", "--out", tmp_path / "y"]
    alone = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "paddle was imported before" not in alone.stderr
    (tmp_path / "x" / "tokenizer.json").write_text("{}")
    assert ernie("ckpt", "verify", tmp_path / "x")[0] == Exit.CHECKPOINT


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (("--to", "hff"), Exit.USAGE, "did you mean hf?"),
        (("--dtype", "bfloat"), Exit.USAGE, "did you mean bfloat16?"),
        ((), Exit.USAGE, "neither a model directory"),
    ],
)
def test_what_cannot_be_exported_is_refused(ernie, tmp_path, args, code, text):
    found, _, err = ernie("export", tmp_path, "--out", tmp_path / "out", *args)
    assert found == code
    assert text in err
