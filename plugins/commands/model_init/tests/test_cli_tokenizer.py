"""ernie tokenizer train."""

import json

from erniecore_text.tokenizer import SentencePieceTokenizer

from erniecore.cli.app import main

TEXT = "the quick brown fox jumps over the lazy dog and rests\n" * 20


def test_train_writes_a_tokenizer(tmp_path, capsys):
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.jsonl").write_text(json.dumps({"src": ["zebra zebra"], "tgt": ["zebra"]}) + "\n")
    out = tmp_path / "tok"
    argv = [
        "tokenizer",
        "train",
        str(tmp_path / "a.txt"),
        str(tmp_path / "b.jsonl"),
        "--vocab-size",
        "320",
        "--out",
        str(out),
    ]
    assert main([*argv, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    tokenizer = SentencePieceTokenizer.from_directory(out)
    assert report["vocab_size"] == tokenizer.vocab_size == 320
    assert report["special_tokens"]["</s>"] == 2
    assert len(tokenizer.encode("zebra")) < 5


def test_too_large_a_vocabulary_names_the_possible_size(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("only a few words")
    assert (
        main(["tokenizer", "train", str(tmp_path / "a.txt"), "--vocab-size", "9000", "--out", str(tmp_path / "t")]) == 4
    )
    assert "at most" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()


def test_missing_file(tmp_path, capsys):
    assert (
        main(["tokenizer", "train", str(tmp_path / "no.txt"), "--vocab-size", "400", "--out", str(tmp_path / "t")]) == 4
    )
    assert "ERN-D002" in capsys.readouterr().err


def test_missing_size_is_a_usage_error(tmp_path, capsys):
    assert main(["tokenizer", "train", str(tmp_path / "no.txt"), "--out", str(tmp_path / "t")]) == 2
