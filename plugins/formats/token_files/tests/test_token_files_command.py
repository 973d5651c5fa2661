"""ernie data build: token files from the command line, accounted for, the same with workers."""

import json

import pytest
from erniecore_text.tokenizer import SentencePieceTokenizer
from erniecore_text.training import train
from erniecore_token_files.reading import open_token_file

from erniecore.cli.app import main

TEXTS = ["the quick brown fox", "jumps over", "the lazy dog and rests", "quick quick fox"]


@pytest.fixture(scope="module")
def tok(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tok")
    train(TEXTS * 5, 311).save(directory)
    return directory


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


def build(capsys, *words):
    code = main(["data", "build", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def ids(tok, text, *, end=True):
    tokenizer = SentencePieceTokenizer.from_directory(tok)
    return [*tokenizer.encode(text), *([tokenizer.eos_id] if end else [])]


@pytest.mark.parametrize("end", [True, False])
def test_documents_are_tokenized_in_order(capsys, tmp_path, tok, text, end):
    words = [text, "--tokenizer", tok, "--out", tmp_path / "c", "--json", *([] if end else ["--no-append-eod"])]
    code, out, _ = build(capsys, *words)
    report = json.loads(out)
    assert code == 0
    assert (report["rows"], report["kept"], report["dropped"], report["documents"]) == (4, 4, 0, 4)
    file = open_token_file(tmp_path / "c")
    expected = [token for t in TEXTS for token in ids(tok, t, end=end)]
    assert file.tokens.tolist() == expected
    assert report["tokens"] == len(expected)
    assert file.num_documents == 4
    assert report["dtype"] == "uint16"


def test_workers_write_the_same_bytes(capsys, tmp_path, tok):
    many = tmp_path / "many.jsonl"
    many.write_text("".join(json.dumps({"text": f"{TEXTS[i % 4]} {i}"}) + "\n" for i in range(1300)))
    for name, workers in (("a", 0), ("b", 2)):
        build(capsys, many, "--tokenizer", tok, "--out", tmp_path / name, "--workers", workers)
    for ending in ("bin", "idx"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_files_follow_each_other(capsys, tmp_path, tok, text):
    code, out, _ = build(capsys, text, text, "--tokenizer", tok, "--out", tmp_path / "c")
    assert code == 0
    assert "8 rows, 0 dropped; 8 documents" in out


def test_a_whole_file_can_be_one_document(capsys, tmp_path, tok, text):
    code, out, _ = build(capsys, text, "--tokenizer", tok, "--out", tmp_path / "c", "--document", "file", "--json")
    assert code == 0
    assert json.loads(out)["documents"] == 1


def test_an_unknown_unit_is_refused(capsys, tmp_path, tok, text):
    code, _, err = build(capsys, text, "--tokenizer", tok, "--out", tmp_path / "c", "--document", "sentence")
    assert code == 2
    assert "paragraph" in err


def test_bad_rows_stop_the_build_and_leave_nothing(capsys, tmp_path, tok):
    rows = tmp_path / "r.jsonl"
    rows.write_text('{"text": "the fox"}\n{"text": 7}\n{"text": "dog"}\n')
    code, _, err = build(capsys, rows, "--tokenizer", tok, "--out", tmp_path / "c", "--format", "text")
    assert code == 4
    assert "r.jsonl:2" in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.jsonl"]


def test_bad_rows_may_be_left_out(capsys, tmp_path, tok):
    rows = tmp_path / "r.jsonl"
    rows.write_text('{"text": "the fox"}\n{"text": 7}\n{"text": "dog"}\n')
    words = ["--tokenizer", tok, "--out", tmp_path / "c", "--format", "text", "--max-drop", 0.5, "--json"]
    code, out, _ = build(capsys, rows, *words)
    report = json.loads(out)
    assert (code, report["rows"], report["kept"], report["dropped"]) == (0, 3, 2, 1)
    assert open_token_file(tmp_path / "c").num_documents == 2


def test_conversations_are_no_documents(capsys, tmp_path, tok):
    rows = tmp_path / "r.jsonl"
    rows.write_text(json.dumps({"src": ["a"], "tgt": ["b"]}) + "\n")
    code, _, err = build(capsys, rows, "--tokenizer", tok, "--out", tmp_path / "c")
    assert code == 4
    assert "ERN-D045" in err


def test_an_existing_pair_is_kept(capsys, tmp_path, tok, text):
    words = [text, "--tokenizer", tok, "--out", tmp_path / "c"]
    build(capsys, *words)
    before = (tmp_path / "c.bin").read_bytes()
    code, _, err = build(capsys, *words)
    assert code == 2
    assert "exists" in err
    assert (tmp_path / "c.bin").read_bytes() == before
