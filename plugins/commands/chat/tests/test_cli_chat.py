"""``ernie chat`` with lines piped in: history, slash commands, saving, a full context."""

import io
import json
import os
import subprocess
import sys

import pytest
from erniecore_chat import chat_command as module

from erniecore.api.files import printable
from erniecore.cli.app import main
from erniecore.errors import Exit


@pytest.fixture
def chat(talker, capsys, monkeypatch):
    """Pipe lines into the command: (exit code, stdout, stderr)."""

    def run(*lines, args=("--max-new-tokens", "4")):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        code = main(["chat", "--model", str(talker / "model"), *args])
        return code, *capsys.readouterr()

    return run


def saved(path):
    return json.loads(path.read_text(encoding="utf-8"))["messages"]


def test_each_line_gets_a_completion_until_the_input_ends(chat, tmp_path):
    code, out, err = chat("copy 1", "", "copy 2", f"/save {tmp_path / 'a'}")
    assert code == Exit.OK
    messages = saved(tmp_path / "a")
    assert [m["role"] for m in messages] == ["user", "assistant"] * 2
    assert out == "".join(printable(m["content"]) + "\n" for m in messages if m["role"] == "assistant")
    assert f"saved {tmp_path / 'a'}" in err


def test_the_history_is_part_of_the_next_prompt(chat, tmp_path):
    chat("copy 1", "copy 22", f"/save {tmp_path / 'long'}")
    chat("copy 22", f"/save {tmp_path / 'short'}")
    assert saved(tmp_path / "long")[-1]["content"] != saved(tmp_path / "short")[-1]["content"]


def test_reset_forgets_and_system_comes_first(chat, tmp_path):
    chat("copy 1", "/system copy", "copy 22", f"/save {tmp_path / 'a'}")
    messages = saved(tmp_path / "a")
    assert messages[0] == {"role": "system", "content": "copy"}
    assert [m["role"] for m in messages[1:]] == ["user", "assistant"]
    chat("copy 1", "/reset", "copy 22", f"/save {tmp_path / 'b'}", args=("--system", "copy", "--max-new-tokens", "4"))
    assert saved(tmp_path / "b") == messages


def test_a_saved_conversation_is_a_row_that_can_be_learned(chat, tmp_path):
    chat("copy 1", f"/save {tmp_path / 'a.jsonl'}")
    from erniecore.data.parsing import detect, installed_formats

    assert detect(tmp_path / "a.jsonl", installed_formats()) == "messages"


def test_quit_ends_before_the_rest(chat):
    assert chat("/quit", "copy 1")[:2] == (Exit.OK, "")


def test_help_and_mistakes_do_not_reach_the_model(chat):
    _, out, err = chat("/help", "/rest", "/xyz", "/* x", "/save", "/save x", "/system")
    assert out == ""
    unknown = "no such command: /xyz; /help lists them (to send it, write //xyz)"
    for text in (
        "/reset          forget",
        "did you mean /reset?",
        unknown,
        "no such command: /*;",
        "usage: /save FILE",
        "nothing to save",
        "no system",
    ):
        assert text in err


def test_a_path_is_a_message_not_a_command(chat):
    _, out, err = chat("/usr/lib")
    assert out != ""
    assert "no such command" not in err


def test_two_slashes_send_one(chat, tmp_path):
    chat("//rest 1", f"/save {tmp_path / 'a'}")
    assert saved(tmp_path / "a")[0]["content"] == "/rest 1"


def test_several_lines_are_a_message_also_when_they_begin_like_a_command():
    taken = []

    class Silent(module.Talk):
        def _reply(self, line):
            taken.append(line)

    talk = Silent(None, sampling=None)
    assert talk.take("/quit\nnot a command\n")
    assert talk.take("/* a comment\n */")
    assert taken == ["/quit\nnot a command\n", "/* a comment\n */"]


def test_a_template_that_refuses_the_conversation_is_reported_and_the_message_forgotten(chat, talker, tmp_path):
    file = talker / "model" / "chat_template.jinja"
    before = file.read_text()
    file.write_text("{% if messages|length > 1 %}{{ raise_exception('one is enough') }}{% endif %}" + before)
    try:
        code, _, err = chat("copy 1", "copy 2", f"/save {tmp_path / 'a'}")
    finally:
        file.write_text(before)
    assert code == Exit.OK
    assert "one is enough" in err
    assert [m["role"] for m in saved(tmp_path / "a")] == ["user", "assistant"]


def test_a_full_context_drops_the_oldest_turn(chat, tmp_path):
    _, _, err = chat(*["copy 12345678"] * 6, f"/save {tmp_path / 'a'}", args=("--max-new-tokens", "8"))
    assert "dropped the oldest user and assistant messages" in err
    assert 2 <= len(saved(tmp_path / "a")) < 12


def test_a_message_that_cannot_fit_is_reported_and_forgotten(chat, tmp_path):
    code, _, err = chat("x" * 300, "copy 1", f"/save {tmp_path / 'a'}")
    assert code == Exit.OK
    assert "longer than the model's context" in err
    assert saved(tmp_path / "a")[0]["content"] == "copy 1"


def test_sampling_comes_from_the_model_unless_given(chat, talker):
    file = talker / "model" / "generation_config.json"
    before = file.read_text()
    hot = {**json.loads(before), "do_sample": True, "temperature": 4.0, "top_p": 1.0}
    file.write_text(json.dumps(hot))
    try:
        drawn = {chat("copy 1", args=("--max-new-tokens", "8", "--seed", str(seed)))[1] for seed in range(3)}
        greedy = {chat("copy 1", args=("--max-new-tokens", "8", "--seed", str(seed), "--temperature", "0"))[1]
                  for seed in range(3)}  # fmt: skip
    finally:
        file.write_text(before)
    assert len(drawn) > 1
    assert len(greedy) == 1


def test_an_interrupted_completion_keeps_what_was_said(talker, capsys):
    class Interrupted:
        def __init__(self):
            self.model = type("Model", (), {"architecture": {}})

        def encode(self, messages):
            return type("Prompt", (), {"ids": [1], "thinking": True})

        def complete(self, prompts, *, on_text, **options):
            on_text(0, "hm, a quest</think>\n<response>\nhalf an ans")
            raise KeyboardInterrupt

    talk = module.Talk(Interrupted(), sampling=None)
    assert talk.take("question")
    assert [(m.content, m.reasoning) for m in talk.history] == [("question", ""), ("half an ans", "hm, a quest")]
    printed = capsys.readouterr()
    assert printed.out == "half an ans"
    assert "(stopped)" in printed.err


def test_on_a_terminal_completions_are_labeled_and_pasted_lines_are_one_message(talker, tmp_path):
    """A real terminal: a pseudo-terminal whose other end pastes two lines and types two."""
    import pty

    outer, inner = pty.openpty()
    script = "import sys; from erniecore.cli.app import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "chat", "--model", str(talker / "model"), "--max-new-tokens", "3"]
    streams = {"stdin": inner, "stdout": inner, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env={**os.environ, "TERM": "dumb"}, **streams) as process:
        os.close(inner)
        pasted = b"\x1b[200~copy 1\ncopy 2\x1b[201~"  # as terminals send what is pasted
        os.write(outer, pasted + f"\n/save {tmp_path / 'a'}\n/quit\n".encode())
        shown = b""
        while True:
            try:
                chunk = os.read(outer, 4096)
            except OSError:  # the other end is closed: Linux reports EIO
                break
            if not chunk:
                break
            shown += chunk
    os.close(outer)
    assert process.returncode == Exit.OK
    assert shown.count(b"Assistant: ") == 1
    assert [m["role"] for m in saved(tmp_path / "a")] == ["user", "assistant"]
    assert saved(tmp_path / "a")[0]["content"] == "copy 1\ncopy 2"
