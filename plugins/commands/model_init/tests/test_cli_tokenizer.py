"""ernie tokenizer train."""

import json

import pytest
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


FEW = "only a few words 天地玄黄宇宙洪荒"


@pytest.mark.parametrize(
    ("size", "taken"),
    [
        (["--vocab-size", "9000"], "9000 ids; took 341"),
        (["--vocab-size", "10"], "10 ids; took 303"),
        (["--vocab-size", "290"], "290 ids; took 303"),
        (["--vocab-size", "310"], ""),
        ([], ""),
    ],
)
def test_the_nearest_size_that_the_text_allows_is_taken(tmp_path, capsys, size, taken):
    (tmp_path / "a.txt").write_text(FEW)
    out = tmp_path / "t"
    assert main(["tokenizer", "train", str(tmp_path / "a.txt"), *size, "--out", str(out), "--json"]) == 0
    printed = capsys.readouterr()
    found = SentencePieceTokenizer.from_directory(out).vocab_size
    assert json.loads(printed.out)["vocab_size"] == found
    assert printed.err == (f"warning: the text does not allow {taken} (--exact refuses)\n" if taken else "")
    assert found == int(taken.rpartition(" ")[2] or (size or ["341"])[-1])


@pytest.mark.parametrize(
    ("size", "code", "said"), [("9000", 4, "at most 341"), ("10", 2, "at least"), ("290", 4, "at least 303")]
)
def test_exact_refuses_what_the_text_does_not_allow(tmp_path, capsys, size, code, said):
    (tmp_path / "a.txt").write_text(FEW)
    arguments = ["tokenizer", "train", str(tmp_path / "a.txt"), "--out", str(tmp_path / "t"), "--exact"]
    assert main([*arguments, "--vocab-size", size]) == code
    assert said in capsys.readouterr().err
    assert main(arguments) == 2
    assert not (tmp_path / "t").exists()


def test_missing_file(tmp_path, capsys):
    assert (
        main(["tokenizer", "train", str(tmp_path / "no.txt"), "--vocab-size", "400", "--out", str(tmp_path / "t")]) == 4
    )
    assert "ERN-D002" in capsys.readouterr().err


def test_missing_directory_is_a_usage_error(tmp_path, capsys):
    assert main(["tokenizer", "train", str(tmp_path / "no.txt")]) == 2
