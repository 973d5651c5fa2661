"""The commands export and model: output, JSON, exit codes."""

from __future__ import annotations

import json

import pytest

from erniecore.cli.app import main
from erniecore.errors import Exit


@pytest.fixture
def ernie(capsys):
    """Run a command; returns (exit code, stdout, stderr)."""

    def call(*words):
        code = main([str(word) for word in words])
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
    words = ("--model", "ernie45", "--tokenizer", tokenizer, "--out", tmp_path / "m", "--size", size)
    code, out, _ = ernie("model", "init", *words)
    assert code == 0
    assert "parameters" in out
    code, out, _ = ernie("export", tmp_path / "m", "--to", "hf", "--out", tmp_path / "x", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["path"] == str(tmp_path / "x")
    assert {"config.json", "model.safetensors", "tokenizer.model", "chat_template.jinja"} <= set(report["files"])
    assert ernie("ckpt", "verify", tmp_path / "x")[0] == 0
    (tmp_path / "x" / "tokenizer.json").write_text("{}")
    assert ernie("ckpt", "verify", tmp_path / "x")[0] == Exit.CHECKPOINT


def test_a_new_model_as_json(ernie, tmp_path, tokenizer):
    words = ("--model", "ernie45-moe", "--tokenizer", tokenizer, "--out", tmp_path / "m", "--json", "--seed", "3")
    code, out, _ = ernie("model", "init", *words)
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


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--to", "hff"), Exit.USAGE, "did you mean hf?"),
        (("--dtype", "bfloat"), Exit.USAGE, "did you mean bfloat16?"),
        ((), Exit.USAGE, "neither a model directory"),
    ],
)
def test_what_cannot_be_exported_is_refused(ernie, tmp_path, words, code, text):
    found, _, err = ernie("export", tmp_path, "--out", tmp_path / "out", *words)
    assert found == code
    assert text in err
