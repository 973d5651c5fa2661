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

        def encode(self, messages, tools):
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


HOT = ("--max-new-tokens", "6", "--temperature", "3")


def test_undo_and_retry(chat, tmp_path):
    """A reply that is asked for again is another one; what is taken back is no part of the next prompt."""
    a, b, c = (tmp_path / name for name in "abc")
    chat("copy 1", f"/save {a}", "/retry", f"/save {b}", "copy 2", "/undo", f"/save {c}", args=HOT)
    assert saved(a)[0] == saved(b)[0]
    assert saved(a)[1] != saved(b)[1]
    assert saved(b) == saved(c)
    _, _, err = chat("/undo", "/retry", "/tool 3", "copy 1", "/tool 3", "/prefer new x")
    for text in ("nothing to take back", "no reply yet", "one reply only", "calls no tool"):
        assert text in err


@pytest.mark.parametrize("which", ["new", "old"])
def test_a_choice_between_two_replies_is_a_preference_row(chat, tmp_path, which):
    from erniecore.data.parsing import detect, installed_formats

    first, second, rows, last = (tmp_path / name for name in ("a", "b", "rows.jsonl", "c"))
    lines = ("copy 1", f"/save {first}", "/retry", f"/save {second}", f"/prefer {which} {rows}", f"/save {last}")
    chat("/system be brief", *lines, args=HOT)
    row = json.loads(rows.read_text())
    old, new = saved(first)[-1], saved(second)[-1]
    assert (row["chosen"], row["rejected"]) == ((new, old) if which == "new" else (old, new))
    assert row["messages"] == saved(first)[:-1]
    assert saved(last)[-1] == row["chosen"]
    assert detect(rows, installed_formats()) == "messages"


def test_a_loaded_conversation_goes_on_with_the_same_ids(chat, tmp_path, talker):
    """Saved, loaded and continued is what it would have been without a break."""
    a, b, c = (tmp_path / f"{name}.jsonl" for name in "abc")
    chat("/system be brief", "copy 1", f"/save {a}", "copy 2", f"/save {b}")
    chat(f"/load {a}", "copy 2", f"/save {c}", args=("--max-new-tokens", "4"))
    assert saved(b) == saved(c)
    _, _, err = chat("/load nothing.jsonl", f"/load {a} 2", "/load")
    for text in ("nothing.jsonl", "no such row", "usage: /load"):
        assert text in err


def test_options_are_shown_and_changed(chat):
    lines = ("/set temperature 3", "/set seed 7", "copy 1", "/set max_new_tokens 1", "copy 1", "/set")
    _, out, err = chat(*lines, args=("--max-new-tokens", "6"))
    assert "do_sample=True  temperature=3.0" in err
    assert "seed=7  max_new_tokens=1" in err
    assert chat("copy 1", args=(*HOT, "--seed", "7"))[1] == out[: len(chat("copy 1", args=(*HOT, "--seed", "7"))[1])]
    _, _, err = chat("/set temprature 1", "/set top_p 2", "/set seed x", "/set max_new_tokens 0")
    for text in ("did you mean temperature", "from 0 to 1", "invalid literal", "above 0"):
        assert text in err


def test_replies_as_json(chat, tmp_path):
    _, out, _ = chat("copy 1", "copy 2", f"/save {tmp_path / 'a'}", args=("--max-new-tokens", "4", "--json"))
    replies = [json.loads(line) for line in out.splitlines()]
    assert [r["content"] for r in replies] == [m["content"] for m in saved(tmp_path / "a")[1::2]]
    assert all(len(r["ids"]) == r["new_tokens"] for r in replies)


def test_results_of_tools_are_typed_in(talker, tmp_path, capsys):
    """Two calls need two results; then the model goes on, with calls, results and tools in the saved row."""
    from erniecore.types.records import Message, ToolCall

    asked = []

    class Calling:
        def __init__(self):
            self.model = type("Model", (), {"architecture": {}})

        def encode(self, messages, tools):
            asked.append(([(m.role, m.content) for m in messages], tools))
            return type("Prompt", (), {"ids": [1], "thinking": False})

        def complete(self, prompts, **options):
            calls = (ToolCall("time", "{}"), ToolCall("place", "{}")) if len(asked) == 1 else ()
            parts = {"content": "" if calls else "noon", "reasoning": "", "tool_calls": calls, "ids": (1,)}
            return [type("Completion", (), {**parts, "finish_reason": "stop"})]

    tool = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}
    talk = module.Talk(Calling(), sampling=None, tools=(tool,))
    for line in ("when?", "/tool", "/tool 12:00", "/tool here", f"/save {tmp_path / 'a.jsonl'}"):
        talk.take(line)
    assert len(asked) == 2
    assert asked[1] == ([("user", "when?"), ("assistant", ""), ("tool", "12:00"), ("tool", "here")], (tool,))
    assert "1 of 2 results" in capsys.readouterr().err
    row = json.loads((tmp_path / "a.jsonl").read_text())
    assert row["tools"] == [tool]
    again = module.Talk(Calling(), sampling=None)
    again.take(f"/load {tmp_path / 'a.jsonl'}")
    assert again.history == talk.history == [*again.history[:-1], Message("assistant", "noon")]
    assert again.tools == (tool,)


def test_a_file_without_tools_is_refused(chat, tmp_path):
    (tmp_path / "tools.json").write_text("{}")
    code, _, err = chat(args=("--tools", str(tmp_path / "tools.json")))
    assert code == Exit.USAGE
    assert "these are no tools" in err
