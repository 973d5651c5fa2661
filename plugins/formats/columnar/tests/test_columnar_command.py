"""ernie data convert, and settings of formats on the command line."""

import json

import pytest

from erniecore.cli.app import main

ROW = {"instruction": "q", "output": "a"}


@pytest.fixture
def file(tmp_path):
    def make(*rows, name="in.jsonl"):
        path = tmp_path / name
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
        return str(path)

    return make


def test_convert_says_what_it_wrote(file, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    assert main(["data", "convert", file(ROW, ROW), "--to", "erniekit", "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "2 rows = 2 kept + 0 with losses + 0 dropped",
        f"{out}: 2 rows (erniekit)",
    ]
    assert json.loads(out.read_text().splitlines()[0]) == {"src": ["q"], "tgt": ["a"]}


def test_losses_are_listed_with_their_lines(file, tmp_path, capsys):
    rows = [{"src": ["a", "b"], "tgt": ["c", "d"], "label": [0, 1]}] * 25
    path = file(*rows)
    assert main(["data", "convert", path, "--to", "alpaca", "--out", str(tmp_path / "o.jsonl")]) == 0
    text = capsys.readouterr().out
    assert f"  {path}:1: loses labels\n" in text
    assert "  and 5 more that lose something\n" in text
    assert (
        main(["data", "convert", path, "--to", "alpaca", "--out", str(tmp_path / "o.jsonl"), "--force", "--json"]) == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["rows"] == report["kept"] + report["truncated"] + report["dropped"] == 25
    assert len(report["losses"]) == 20


def test_nothing_is_written_when_rows_are_bad(file, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    assert main(["data", "convert", file(ROW, "{"), "--to", "messages", "--out", str(out)]) == 4
    assert "nothing is written" in capsys.readouterr().out
    assert not out.exists()
    assert main(["data", "convert", file(ROW, "{"), "--to", "messages", "--out", str(out), "--max-drop", "0.5"]) == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--to", "auto", "--out", "x.jsonl"], "only read"),
        (["--to", "alpacca", "--out", "x.jsonl"], "alpaca"),
        (["--to", "alpaca", "--out", "x.csv"], ".parquet"),
        (["--to", "alpaca", "--out", "x.jsonl", "formats.alpaca.columns.prompt=x"], "instruction"),
        (["--to", "alpaca", "--out", "x.jsonl", "formats.alpacca.columns.prompt=x"], "alpaca"),
        (["--to", "alpaca", "--out", "x.jsonl", "formats.alpaca=x"], "formats.alpaca.KEY"),
    ],
)
def test_wrong_words_are_usage_errors(file, tmp_path, monkeypatch, capsys, more, words):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "convert", file(ROW), *more]) == 2
    assert words in capsys.readouterr().err


def test_settings_without_a_file(capsys):
    assert main(["data", "check", "formats.text.document=file"]) == 2


def test_columns_are_read_and_written_under_other_names(file, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    words = ["formats.alpaca.columns.instruction=question", "formats.erniekit.columns.src=user"]
    path = file({"question": "q", "output": "a"})
    assert main(["data", "convert", path, *words, "--format", "alpaca", "--to", "erniekit", "--out", str(out)]) == 0
    assert json.loads(out.read_text()) == {"user": ["q"], "tgt": ["a"]}


@pytest.mark.parametrize(("document", "rows"), [("line", 3), ("paragraph", 2), ("file", 1)])
@pytest.mark.parametrize("command", ["check", "stats"])
def test_text_files_are_cut_as_asked(tmp_path, capsys, command, document, rows):
    (tmp_path / "a.txt").write_text("a\nb\n\nc\n")
    assert main(["data", command, str(tmp_path / "a.txt"), f"formats.text.document={document}", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rows" if command == "check" else "records"] == rows
