"""What commands print fits the terminal: nothing that is boxed or lined up wraps, and nothing is cut."""

import io
import json
import re
import sys

import pytest

from erniecore.cli import render
from erniecore.cli.app import main


class Terminal(io.StringIO):
    """Takes what is printed, as wide as COLUMNS says."""

    width = 0

    def isatty(self):
        return True

    def lines(self):
        """Without colors and movements of the cursor."""
        return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.getvalue()))


@pytest.fixture(params=[80, 60])
def terminal(request, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.chdir(tmp_path)

    def begin():
        """From within the test: between fixtures and tests pytest changes the streams."""
        shown = Terminal()
        shown.width = request.param
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, shown)
        return shown

    return begin


def too_wide(terminal):
    """Lines beyond the width, but for single words such as paths, which are never broken."""
    return [line for line in terminal.lines() if len(line.rstrip()) > terminal.width and " " in line.strip()]


def test_of_a_run_everything_fits_and_no_number_is_cut(terminal, talker, tmp_path):
    terminal = terminal()
    data = ["--data", str(talker / "rows.jsonl"), f"data.eval={talker / 'rows.jsonl'}", "data.max_seq_len=96"]
    often = ["train.max_steps=4", "train.batch_size=2", "eval.every=2", "checkpoint.every=2", "log.report=false"]
    (tmp_path / "model").symlink_to(talker / "model")
    data = [word.replace(str(talker / "rows.jsonl"), "rows.jsonl") for word in data]
    (tmp_path / "rows.jsonl").symlink_to(talker / "rows.jsonl")
    assert main(["run", "--model", "model", "--method", "sft", *data, *often, "--out", "out"]) == 0
    assert too_wide(terminal) == []
    lines = terminal.lines()
    (top,) = [i for i, line in enumerate(lines) if line.startswith("+-- plan")]
    bottom = next(i for i in range(top + 1, len(lines)) if lines[i].startswith("+--"))
    assert {len(line) for line in lines[top : bottom + 1]} == {terminal.width}
    assert all(line.startswith("| ") and line.endswith(" |") for line in lines[top + 1 : bottom])
    text = " ".join(" ".join(lines).split())
    facts = json.loads((tmp_path / "out" / "events.jsonl").read_text().splitlines()[0])
    for line in facts["data"]:
        assert line in text
    last = json.loads(
        [line for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines() if '"step"' in line][-1]
    )
    assert last["step"] == 4
    assert re.search(r"step 4/4 \S+ loss \d\.\d{4} [\d.]+k? tok/s ETA 0:00:00", text)


@pytest.mark.parametrize(
    "command",
    [
        ["doctor"],
        ["doctor", "--kernels"],
        ["plugins"],
        ["data", "check", "bad.jsonl"],
        ["data", "stats", "rows.jsonl", "--model", "model"],
        ["run", "--model", "model", "--method", "sft", "--data", "rows.jsonl", "--dry-run"],
        ["run", "--model", "ernie45-moe", "--method", "sfft"],
        ["run", "--model", "model", "train.nothing=1", "data.max_drop=2"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_commands_fit(terminal, talker, tmp_path, command):
    terminal = terminal()
    for name in ("model", "rows.jsonl"):
        (tmp_path / name).symlink_to(talker / name)
    (tmp_path / "bad.jsonl").write_text((talker / "rows.jsonl").read_text().replace("assistant", "asistant"))
    main(command)
    assert terminal.getvalue().strip()
    assert too_wide(terminal) == []


def test_a_table_that_is_too_wide_is_folded_and_whole(terminal):
    terminal = terminal()
    path = "/a/very/long/path/" + "x" * 60
    render.show_table(("name", "loss", "path"), [("run", "0.1234", path), ("other", "12.5", "out")])
    assert too_wide(terminal) == []
    assert "".join("".join(terminal.lines()).split()) == f"namelosspathrun0.1234{path}other12.5out"


def test_a_command_to_paste_stays_on_one_line(terminal):
    terminal = terminal()
    from erniecore.errors import UsageError

    command = "ernie data check " + "long " * 20
    render.show_error(UsageError("wrong " * 20, fix="repair " * 20, next=command))
    lines = [line.rstrip() for line in terminal.lines()]
    assert f"  next    {command}".rstrip() in lines
    assert all(len(line) <= terminal.width for line in lines if not line.startswith("  next"))


def test_without_a_terminal_nothing_is_wrapped(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    render.show("word " * 30, indent=4)
    render.show_table(("a", "b"), [("x" * 50, "y" * 50)])
    assert [len(line) for line in capsys.readouterr().out.splitlines()] == [150, 53, 102]
