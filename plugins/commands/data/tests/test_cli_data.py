"""ernie data check, show, stats."""

import json

import pytest
from erniecore_text.template import JinjaChatTemplate
from erniecore_text.tokenizer import SentencePieceTokenizer
from erniecore_text.training import train

from erniecore.cli.app import main

PLAIN = (
    "{{ '<|begin_of_sentence|>' }}{% for m in messages %}{{ m.role + ': ' + m.content }}"
    "{{ '<|end_of_sentence|>' if m.role == 'assistant' else '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
GOOD = {"src": ["the fox", "and then"], "tgt": ["jumps", "rests"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    made = train(["the quick brown fox jumps over the lazy dog and rests " * 5], 310)
    directory = tmp_path_factory.mktemp("tok")
    SentencePieceTokenizer(made.model, made.files, JinjaChatTemplate(PLAIN)).save(directory)
    return str(directory)


@pytest.fixture
def write(tmp_path):
    def make(*rows, name="d.jsonl"):
        path = tmp_path / name
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
        return str(path)

    return make


def as_json(capsys, *argv):
    code = main([*argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_check_of_good_rows(write, capsys):
    code, report = as_json(capsys, "data", "check", write(GOOD, GOOD), "--format", "erniekit")
    assert code == 0
    assert [report[k] for k in ("rows", "kept", "truncated", "dropped")] == [2, 2, 0, 0]
    assert report["errors"] == []


def test_check_of_bad_rows_lists_place_and_code(write, capsys):
    path = write(GOOD, '{"src": ["a"]', {"src": ["a"], "tgt": [""]})
    code, report = as_json(capsys, "data", "check", path)
    assert code == 4
    assert report["rows"] == report["kept"] + report["truncated"] + report["dropped"] == 3
    assert [(e["file"], e["line"], e["path"], e["code"]) for e in report["errors"]] == [
        (path, 2, "$", "ERN-D020"),
        (path, 3, "$.tgt[0]", "ERN-D032"),
    ]
    assert report["files"][path]["format"] == "erniekit"


def test_check_tells_a_person_where_and_what_to_do(write, capsys):
    path = write(GOOD, {"srcs": ["a"], "tgt": ["b"]})
    assert main(["data", "check", path]) == 4
    out = capsys.readouterr().out
    assert f"{path}:2 $.src: ERN-D030 the field 'src' is missing" in out
    assert "is 'srcs' meant to be 'src'?" in out
    assert out.endswith("2 rows = 1 kept + 0 truncated + 1 dropped (50.00%)\n")


def test_check_finds_the_rows_that_a_template_would_serve_differently(model, write, tmp_path, capsys):
    """The prompt in use has a mark in its middle, behind the first answer; begin and end are the same."""
    marked = PLAIN.replace(
        "{% endfor %}", "{{ '#' if add_generation_prompt and loop.index0 == 1 else '' }}{% endfor %}"
    )
    base = SentencePieceTokenizer.from_directory(model)
    SentencePieceTokenizer(base.model, base.files, JinjaChatTemplate(marked)).save(tmp_path / "marked")
    rows = {"src": ["the fox"], "tgt": ["jumps"]}, GOOD, {"src": ["the dog"], "tgt": ["rests"]}
    code, report = as_json(capsys, "data", "check", write(*rows), "--model", str(tmp_path / "marked"))
    assert (code, report["kept"], report["dropped"]) == (4, 2, 1)
    [error] = report["errors"]
    assert (error["line"], error["path"], error["code"]) == (2, "$.messages[3]", "ERN-D047")
    assert as_json(capsys, "data", "check", write(*rows), "--model", model)[0] == 0


def test_check_allows_a_share_of_bad_rows(write, capsys):
    path = write(*[GOOD] * 9, "{")
    assert main(["data", "check", path, "--max-drop", "0.1"]) == 0
    assert main(["data", "check", path, "--max-drop", "0.09"]) == 4


def test_check_goes_on_past_files_that_cannot_be_read(write, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    files = [str(tmp_path / "no.jsonl"), write(GOOD), str(tmp_path / "empty")]
    code, report = as_json(capsys, "data", "check", *files)
    assert code == 4
    assert report["kept"] == 1
    assert sorted(e["code"] for e in report["errors"]) == ["ERN-D002", "ERN-D003"]


def test_check_counts_rows_that_fit_no_format(write, capsys):
    code, report = as_json(capsys, "data", "check", write({"x": 1}, {"x": 2}))
    assert code == 4
    assert (report["rows"], report["dropped"], report["reasons"]) == (2, 2, {"ERN-D037": 2})


def test_check_lists_as_many_errors_as_asked(write, capsys):
    _, report = as_json(capsys, "data", "check", write(*["{"] * 5, GOOD), "--max-errors", "2")
    assert (len(report["errors"]), report["errors_not_listed"]) == (2, 3)


def test_check_with_a_model_counts_tokens_and_truncation(write, model, capsys):
    path = write(GOOD, {"src": ["q " * 30, "p"], "tgt": ["a", "b"]})
    code, report = as_json(capsys, "data", "check", path, "--model", model, "--max-seq-len", "64")
    assert code == 0
    assert (report["kept"], report["truncated"]) == (1, 1)
    assert report["tokens"]["samples"] == 2


def test_unknown_format_is_a_usage_error(write, capsys):
    assert main(["data", "check", write(GOOD), "--format", "alpacca"]) == 2
    assert "alpaca" in capsys.readouterr().err


def test_same_file_twice_is_a_usage_error(write, capsys):
    path = write(GOOD)
    assert main(["data", "check", path, path]) == 2
    assert "named twice" in capsys.readouterr().err


def test_show_marks_the_loss_tokens(write, model, capsys):
    assert main(["data", "show", write(GOOD), "--model", model]) == 0
    out = capsys.readouterr().out
    assert "<|begin_of_sentence|>user: the fox\nassistant: ⟦jumps</s>⟧user: and then\nassistant: ⟦rests</s>⟧" in out


def test_show_keeps_control_characters_from_the_terminal(write, model, capsys):
    main(["data", "show", write({"src": "a\x1b[31m", "tgt": "b"}), "--model", model])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "a\\x1b[31m" in out


def test_show_of_one_row(write, model, capsys):
    path = write(GOOD, {"src": "two", "tgt": "2"})
    code, samples = as_json(capsys, "data", "show", path, "--model", model, "--line", "2")
    assert code == 0
    assert [s["line"] for s in samples] == [2]
    assert samples[0]["spans"][-1] == {"text": "2</s>", "loss": True}
    assert len(samples[0]["input_ids"]) == len(samples[0]["labels"]) == samples[0]["tokens"]


def test_show_of_a_row_that_cannot_be_used_says_why(write, model, capsys):
    path = write(GOOD, {"src": "two " * 50, "tgt": "2"})
    assert main(["data", "show", path, "--model", model, "--line", "2", "--max-seq-len", "10"]) == 4
    assert f"{path}:2" in capsys.readouterr().err


def test_show_of_a_line_without_row(write, model, capsys):
    assert main(["data", "show", write(GOOD), "--model", model, "--line", "9"]) == 2


def test_stats_of_records(write, capsys):
    code, report = as_json(capsys, "data", "stats", write({**GOOD, "system": "S"}, GOOD))
    assert code == 0
    assert report["roles"] == {"assistant": 4, "system": 1, "user": 4}
    assert report["turns"] == {"2": 2}
    assert report["extras"] == {"with system text": 1}


def test_stats_of_tokens(write, model, capsys):
    path = write(*[GOOD] * 4)
    _, report = as_json(capsys, "data", "stats", path, "--model", model, "--max-seq-len", "200")
    tokens = report["tokens"]
    assert tokens["samples"] == 4
    assert tokens["lengths"]["min"] == tokens["lengths"]["max"]
    assert sum(b["count"] for b in tokens["histogram"]) == 4
    assert 0 < tokens["loss_tokens"] < tokens["tokens"]
    assert tokens["fill_rate"]["none"] < tokens["fill_rate"]["greedy"] <= 1
    assert main(["data", "stats", path, "--model", model]) == 0
    assert "fill rate:" in capsys.readouterr().out


def test_stats_of_nothing_usable(write, capsys):
    assert main(["data", "stats", write("{"), "--format", "erniekit"]) == 4


@pytest.mark.parametrize(("more", "unit", "count"), [([], "line", 2), (["formats.text.document=file"], "file", 1)])
def test_of_a_folder_of_texts_is_said_what_a_document_is_and_what_is_not_read(tmp_path, capsys, more, unit, count):
    (tmp_path / "texts" / "more").mkdir(parents=True)
    (tmp_path / "texts" / "more" / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "texts" / "scan.pdf").write_text("x")
    (tmp_path / "texts" / ".old").mkdir()
    (tmp_path / "texts" / ".old" / "b.txt").write_text("three\n")
    (tmp_path / "texts" / "link").symlink_to(tmp_path / "texts" / "more")
    code, report = as_json(capsys, "data", "check", str(tmp_path / "texts"), *more)
    found = report["files"][str(tmp_path / "texts")]
    assert (code, found["format"], found["document"], found["rows"]) == (0, "text", unit, count)
    main(["data", "check", str(tmp_path / "texts"), *more])
    out = capsys.readouterr().out
    assert f"texts: text, a document per {unit}, {count} row" in out
    assert "texts: 1 file of other kinds not read: scan.pdf" in out
    assert "texts: 2 files hidden, linked or of a data set of their own not read: b.txt, link" in out


PAIR = {"prompt": "the fox", "chosen": "jumps", "rejected": "rests"}


def test_a_method_without_a_model_is_said_to_tell_nothing(write, model, capsys):
    assert main(["data", "check", write(PAIR), "--method", "sft"]) == 0
    assert "without --model it is not known which of them sft trains on" in capsys.readouterr().out
    assert main(["data", "check", write(PAIR), "--method", "dpo", "--model", model]) == 0
    assert "note:" not in capsys.readouterr().out


@pytest.mark.parametrize("command", ["show", "stats"])
def test_rows_that_the_method_cannot_learn_from_are_said(write, model, capsys, command):
    assert main(["data", command, write(PAIR), "--model", model]) == 4
    assert "ERN-D045" in capsys.readouterr().err


def test_show_of_one_row_of_the_wrong_kind(write, model, capsys):
    assert main(["data", "show", write(PAIR), "--model", model, "--line", "1"]) == 4
    assert "ERN-D045" in capsys.readouterr().err


def test_stats_of_tokens_say_how_many_rows_are_missing(write, model, capsys):
    arguments = ["--model", model, "--max-seq-len", "40", "data.too_long=turns"]
    assert main(["data", "stats", write(GOOD, {"src": "two " * 50, "tgt": "2"}), *arguments]) == 0
    assert "dropped:    1 row;" in capsys.readouterr().out


def test_stats_of_tokens_follow_the_settings_of_the_format(write, model, capsys):
    path = write({"body": "the quick brown fox"})
    args = ["--format", "text", "formats.text.field=body", "--method", "pt", "--model", model]
    _, report = as_json(capsys, "data", "stats", path, *args)
    assert report["tokens"]["samples"] == 1


def test_directory_without_tokenizer(write, tmp_path, capsys):
    assert main(["data", "show", write(GOOD), "--model", str(tmp_path / "none")]) != 0
