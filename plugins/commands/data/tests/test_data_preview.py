"""ernie data check, show and stats with the settings of a run, on rows that have to be named exactly."""

import io
import json
import re
import shlex
import sys

import pytest

from erniecore.cli.app import main

ROWS = [
    {"messages": [{"role": "user", "content": f"copy {n}"}, {"role": "assistant", "content": f"{n}"}]} for n in range(6)
]
PAIR = {
    "messages": [{"role": "user", "content": "copy 1"}],
    "chosen": {"role": "assistant", "content": "1"},
    "rejected": {"role": "assistant", "content": "I was trained on this machine a moment ago, " * 2},
}


@pytest.fixture
def home(tmp_path, monkeypatch, talker):
    """A directory to work in, with the talker's model as ``model``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(talker / "model")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "pairs.jsonl").write_text(json.dumps(PAIR) + "\n")
    return tmp_path


def one_line(path):
    """An array on one line: element 2 has a wrong role, 4 is no JSON, 5 learns nothing."""
    rows = [json.dumps(row) for row in ROWS]
    rows[2] = rows[2].replace("assistant", "asistant")
    rows[4] = rows[4].replace('"role"', "role", 1)
    rows[5] = rows[5].replace('"assistant", "content": "5"', '"assistant", "content": "5", "weight": 0')
    path.write_text("[" + ", ".join(rows) + "]")
    return path


def test_errors_of_an_array_on_one_line_name_the_element(home, capsys):
    one_line(home / "one.json")
    assert main(["data", "check", "one.json", "--model", "model"]) == 4
    out = capsys.readouterr().out
    assert "  one.json:1 [2].messages[1].role: ERN-D034 " in out
    assert "  one.json:1 [4]: ERN-D020 the row is not valid JSON at character 16: " in out
    main(["data", "check", "one.json", "--json"])
    errors = json.loads(capsys.readouterr().out)["errors"]
    assert [(e["line"], e["path"]) for e in errors] == [(1, "$[2].messages[1].role"), (1, "$[4]")]


def test_samples_of_an_array_on_one_line_name_the_element_and_are_found_by_it(home, capsys):
    one_line(home / "one.json")
    arguments = ["data", "show", "one.json", "--model", "model"]
    assert main([*arguments, "--element", "3"]) == 0
    out = capsys.readouterr().out
    assert "--- one.json:1 [3]  " in out
    assert "copy 3" in out
    assert out.count("---") == 1
    assert main([*arguments, "--element", "3", "--json"]) == 0
    assert [(s["line"], s["element"]) for s in json.loads(capsys.readouterr().out)] == [(1, 3)]
    assert main([*arguments, "--element", "9"]) == 2
    assert "no row starts there" in capsys.readouterr().err
    for element, code in (("2", "ERN-D034"), ("4", "ERN-D020")):
        assert main([*arguments, "--element", element]) == 4
        assert f"one.json:1 [{element}]" in (error := capsys.readouterr().err)
        assert code in error
    assert main([*arguments, "--element", "3", "--max-seq-len", "12"]) == 4
    assert "one.json:1 [3]" in capsys.readouterr().err


def test_an_array_over_lines_is_named_by_lines(home, capsys):
    (home / "rows.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in [*ROWS, {"messages": []}]) + "]")
    assert main(["data", "check", "rows.json"]) == 4
    assert "rows.json:8 $.messages" in capsys.readouterr().out


THINKING = "model:\n  path: model\n  template: thinking\nmethod: sft\ndata:\n  train: rows.jsonl\n"


@pytest.mark.parametrize(
    "arguments",
    [["rows.jsonl", "--model", "model", "model.template=thinking"], ["run.yaml"], ["run.yaml", "rows.jsonl"], ["done"]],
)
def test_samples_are_those_of_a_run_with_the_same_settings(home, capsys, arguments):
    (home / "run.yaml").write_text(THINKING)
    (home / "done").mkdir()
    (home / "done" / "resolved.yaml").write_text(THINKING)
    assert main(["data", "show", *arguments, "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert "think_mode=True" in out
    assert "<response>\n0\n</response>\n<|im_end|>⟧" in out
    assert main(["data", "stats", *arguments]) == 0
    assert "in 6 samples" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["check", "show", "stats"])
def test_a_setting_is_never_taken_for_a_file(home, capsys, command):
    for word, said in (
        ("model.template=thinking", "need a model"),
        ("data.max_seq=3", "did you mean data.max_seq_len?"),
        ("nothing.at=all", "unknown"),
    ):
        assert main(["data", command, "rows.jsonl", word]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert "no such file" not in error


def test_without_files_and_settings_the_help_is_named(home, capsys):
    assert main(["data", "check"]) == 2
    assert "ernie data check --help" in capsys.readouterr().err
    assert main(["data", "show", "rows.jsonl"]) == 2
    assert re.search(r"next +ernie data check rows\.jsonl\n", capsys.readouterr().err)


def test_the_answers_of_a_pair_stand_side_by_side_with_their_names(home, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["data", "show", "pairs.jsonl", "--model", "model", "--method", "dpo"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("⟦…⟧: loss tokens, which the model is trained on; the rest is masked")
    _, _, answers = out.partition("prompt:\n<|begin_of_sentence|>User: copy 1\nAssistant: \n")
    rows = [line.split(" | ") for line in answers.splitlines()[:5]]
    assert [cell.strip() for cell in rows[0]] == ["chosen", "rejected"]
    assert rows[1] == ["⟦1</s>⟧".ljust(28), "⟦I was trained on this"]
    assert all(len(line) <= 60 for line in out.splitlines()[2:])
    whole = " ".join(row[-1].removeprefix("| ").strip() for row in rows[1:])
    assert whole.split() == ("⟦" + PAIR["rejected"]["content"] + "</s>⟧").split()


def test_each_answer_of_a_sample_has_its_tokens(home, capsys):
    main(["data", "show", "pairs.jsonl", "--model", "model", "--method", "dpo", "--json"])
    (sample,) = json.loads(capsys.readouterr().out)
    assert [(span["part"], span["loss"]) for span in sample["spans"]] == [
        ("prompt", False),
        ("chosen", True),
        ("rejected", True),
    ]
    assert sample["spans"][1]["text"] == "1</s>"


def test_a_rated_answer_is_labeled(home, capsys):
    (home / "rated.jsonl").write_text(json.dumps({**ROWS[0], "label": False}) + "\n")
    assert main(["data", "show", "rated.jsonl", "--model", "model", "--method", "kto"]) == 0
    assert "Assistant: \nundesirable:\n⟦0</s>⟧" in capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_loss_tokens_are_green_and_the_legend_says_so(home, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["data", "show", "rows.jsonl", "--model", "model", "--limit", "1"]) == 0
    out = sys.stdout.getvalue()
    assert out.startswith("\x1b[32mgreen\x1b[0m: loss tokens")
    assert "Assistant: \x1b[32m0</s>\x1b[0m" in out
    assert "⟦" not in out


def test_ideographs_take_two_columns():
    from erniecore_data.layout import sample_lines
    from erniecore_data.show import Span

    found = [Span("问", False, (), "prompt"), Span("甲乙丙丁戊", True, (), "chosen"), Span("x", True, (), "rejected")]
    assert sample_lines(found, 15, False)[2:] == ["chosen | rejected", "⟦甲乙  | ⟦x⟧", "丙丁戊 |", "⟧      |"]


def test_the_hint_of_a_failed_run_checks_the_same_rows(home, capsys):
    arguments = [
        "run",
        "--model",
        "model",
        "--method",
        "sft",
        "--data",
        "pairs.jsonl",
        "--out",
        "a run",
        "model.template=thinking",
    ]
    assert main(arguments) == 4
    hint = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("  next"))
    program, *pasted = shlex.split(hint.removeprefix("  next"))
    assert (program, pasted) == ("ernie", ["data", "check", "a run"])
    assert main(pasted) == 4
    assert "pairs.jsonl:1: ERN-D045" in capsys.readouterr().out


def test_the_hint_of_a_preview_has_its_arguments(home, capsys):
    arguments = ["pairs.jsonl", "data.packing=none", "--model", "model", "--method", "sft", "--max-seq-len", "80"]
    assert main(["data", "stats", *arguments]) == 4
    hint = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("  next"))
    _, _, command, *pasted = shlex.split(hint.removeprefix("  next"))
    assert (command, sorted(pasted)) == ("check", sorted(arguments))
    assert main(["data", "check", *pasted]) == 4


@pytest.mark.parametrize("method", ["pt", "reward", "grpo", "distill", "orpo"])
def test_every_kind_of_method_can_be_previewed_without_what_only_a_run_needs(home, capsys, method):
    data = "pairs.jsonl" if method in ("reward", "orpo") else "rows.jsonl"
    teacher = ["method.teacher=model"] if method == "distill" else []
    code = main(["data", "check", data, "--model", "model", "--method", method, *teacher])
    assert " loss tokens" in capsys.readouterr().out
    assert code in (0, 4)
