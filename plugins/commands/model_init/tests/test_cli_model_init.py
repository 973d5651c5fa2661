"""The command model init: output, JSON, exit codes."""

from __future__ import annotations

import json

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


def test_a_new_model_as_json(ernie, tmp_path, tokenizer):
    args = ("--model", "ernie45-moe", "--tokenizer", tokenizer, "--out", tmp_path / "m", "--json", "--seed", "3")
    code, out, _ = ernie("model", "init", *args)
    report = json.loads(out)
    assert code == 0
    assert report["parameters"] > 0
    assert report["architecture"]["vocab_size"] == 320


def test_an_unknown_model_gets_the_nearest_name(ernie, tmp_path, tokenizer):
    code, _, err = ernie("model", "init", "--model", "ernie46", "--tokenizer", tokenizer, "--out", tmp_path / "m")
    assert code == Exit.USAGE
    assert "ernie45" in err


def test_a_directory_without_a_tokenizer_is_an_environment_fault(ernie, tmp_path):
    code, _, err = ernie("model", "init", "--model", "ernie45", "--tokenizer", tmp_path, "--out", tmp_path / "m")
    assert code == Exit.ENVIRONMENT
    assert "no tokenizer here" in err
