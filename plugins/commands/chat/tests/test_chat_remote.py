"""``ernie chat --url``: the commands and replies of a local model, over a real server; and chats on a real terminal."""

import base64
import http.server
import io
import json
import os
import pty
import signal
import sys
import threading
import time

import pytest
from erniecore_openai.app import make_app
from erniecore_openai.config import OpenAIConfig
from erniecore_openai.serving import read_model
from erniecore_openai.state import Serving
from erniecore_serve.http import listening

from erniecore.cli.app import main
from erniecore.errors import Exit

KEY = "sk-a-key-for-chats-0123"


@pytest.fixture(scope="module")
def url(talker):
    """The address of a server in this process."""
    settings = OpenAIConfig(port=0, name="tiny", rows=2)
    serving = Serving(settings)
    app = make_app(serving, KEY)
    with listening(app, settings.host, settings.port, header_seconds=10.0, connections=64) as found:
        model = read_model(settings, talker / "model")
        model.engine.start()
        serving.open(model)
        yield found
        model.engine.stop(drain=False)
    serving.close()


@pytest.fixture
def chat(capsys, monkeypatch):
    """Pipe lines into the command: (exit code, stdout, stderr)."""
    monkeypatch.setenv("ERNIE_API_KEY", KEY)

    def run(*lines, args):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return main(["chat", *map(str, args)]), *capsys.readouterr()

    return run


LINES = ("/system copy", "copy 1", "/set temperature 0", "copy 22", "/undo", "copy 333")


def test_a_served_model_says_what_the_model_says(chat, url, talker, tmp_path):
    """Greedy, with the same commands: the saved conversations are equal."""
    rows = {}
    for name, where in (("served", ("--url", url)), ("local", ("--model", talker / "model"))):
        how = (*where, "--temperature", "0", "--max-new-tokens", "6")
        code, out, err = chat(*LINES, f"/save {tmp_path / name}", args=how)
        assert code == Exit.OK, err
        rows[name] = (json.loads((tmp_path / name).read_text()), out)
    assert rows["served"] == rows["local"]


def test_another_reply_and_a_preference(chat, url, tmp_path):
    rows = tmp_path / "rows.jsonl"
    how = ("--url", url.removesuffix("/v1"), "--temperature", "3", "--seed", "4", "--max-new-tokens", "8")
    code, _, err = chat("copy 1", "/retry", f"/prefer old {rows}", "/adapter x", args=how)
    assert code == Exit.OK
    row = json.loads(rows.read_text())
    assert row["chosen"] != row["rejected"]
    assert "no adapters" in err
    code, out, _ = chat("copy 1", args=(*how, "--json"))
    told = json.loads(out)
    assert told["content"] == row["chosen"]["content"]
    assert (code, told["new_tokens"] > 0, told["prompt_tokens"] > 0) == (Exit.OK, True, True)


class _Scripted(http.server.BaseHTTPRequestHandler):
    """A server that thinks, then calls two tools, and replies once it has their results."""

    asked: list = []
    left = threading.Event()

    def do_GET(self):
        self._send("application/json", json.dumps({"data": [{"id": "m"}]}))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body)
        if body["messages"][-1]["content"] == "talk forever":
            return self._talk()
        if body["messages"][-1]["content"] == "say nothing":
            return self._send("text/event-stream", 'data: {"choices": [{"index": 0, "delta": {}}]}\n\ndata: [DONE]\n\n')
        calls = [{"index": n, "function": {"name": f"f{n}", "arguments": '{"a"'}} for n in range(2)]
        more = [{"index": n, "function": {"arguments": f": {n}}}"}} for n in range(2)]
        deltas = [
            {"reasoning_content": "let me "},
            {"reasoning_content": "see"},
            {"tool_calls": calls},
            {"tool_calls": more},
        ]
        if body["messages"][-1]["role"] == "tool":
            deltas = [{"reasoning": "good"}, {"content": "It is "}, {"content": "3."}]
        text = "".join(f"data: {json.dumps({'choices': [{'index': 0, 'delta': d}]})}\n\n" for d in deltas)
        self._send("text/event-stream", f": hello\n\n{text}data: [DONE]\n\n")

    def _talk(self):
        """Until nobody listens."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        while True:
            try:
                self.wfile.write(b'data: {"choices": [{"index": 0, "delta": {"content": "on and "}}]}\n\n')
            except OSError:
                return self.left.set()
            time.sleep(0.01)

    def _send(self, kind, text):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *parts):
        pass


@pytest.fixture
def scripted():
    _Scripted.asked = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Scripted) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def test_reasoning_and_tools_of_a_server(chat, scripted, tmp_path):
    tools, row = tmp_path / "tools.json", tmp_path / "row"
    tools.write_text('[{"type": "function", "function": {"name": "f0", "parameters": {}}}]')
    how = ("--url", scripted, "--tools", tools, "--key-file", "")
    code, out, err = chat("what?", "/tool 1", "/tool 2", f"/save {row}", args=how)
    assert (code, out.strip()) == (Exit.OK, "It is 3.")
    assert "1 of 2 results" in err
    first, second = _Scripted.asked
    assert "temperature" not in first  # the server's own
    assert first["tools"][0]["function"]["name"] == "f0"
    assert [m["role"] for m in second["messages"]] == ["user", "assistant", "tool", "tool"]
    calls = second["messages"][1]["tool_calls"]
    assert [(c["function"]["name"], c["function"]["arguments"]) for c in calls] == [
        ("f0", '{"a": 0}'),
        ("f1", '{"a": 1}'),
    ]
    assert [m["tool_call_id"] for m in second["messages"][2:]] == [c["id"] for c in calls]
    assert "reasoning" not in json.dumps(second["messages"])  # it would be part of the next prompt
    saved = json.loads(row.read_text())["messages"]
    assert (saved[1]["reasoning_content"], saved[-1]["reasoning_content"]) == ("let me see", "good")


def test_images_and_videos_are_sent_as_they_are_where_their_markers_stand(chat, scripted, tmp_path):
    for name in ("a.png", "b.mp4"):
        (tmp_path / name).write_bytes(name.encode())
    shown = f"/image {tmp_path / 'a.png'}", f"/video {tmp_path / 'b.mp4'}", "/video none.mp4"
    _, _, err = chat(*shown, "<video>?<image>", args=("--url", scripted, "--key-file", ""))
    assert "cannot read the video" in err
    [asked] = _Scripted.asked
    kinds = [part["type"] for part in asked["messages"][0]["content"]]
    assert kinds == ["video_url", "text", "image_url"]
    first, text, last = asked["messages"][0]["content"]
    assert first["video_url"]["url"] == "data:video/mp4;base64," + base64.b64encode(b"b.mp4").decode()
    assert last["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(b"a.png").decode()
    assert text["text"] == "?"


def test_an_empty_reply_is_saved_and_told(chat, scripted, tmp_path):
    row = tmp_path / "row.jsonl"
    _, _, err = chat("say nothing", f"/save {row}", f"/load {row}", args=("--url", scripted, "--key-file", ""))
    assert f"saved {row}" in err
    assert "note: empty: message 2" in err
    assert "the text is empty" in err


@pytest.mark.parametrize(
    ("args", "code", "part"),
    [
        (["--url", "http://127.0.0.1:9"], Exit.ENVIRONMENT, "the server is not reachable"),
        (["--url", "ftp://x"], Exit.USAGE, "no address of a server"),
        (["--url", "http://example.com/v1"], Exit.USAGE, "the API key would go over the network as plain text"),
        (["--url", "URL", "--model", "gpt"], Exit.USAGE, "no such model"),
        (["--url", "URL", "--adapter", "x"], Exit.USAGE, "the server decides"),
        ([], Exit.USAGE, "missing option '--model'"),
    ],
)
def test_what_is_refused_at_the_start(chat, url, args, code, part):
    found, _, err = chat(args=[url if word == "URL" else word for word in args])
    assert found == code
    assert part in err


def test_what_the_server_refuses_is_told_and_the_chat_goes_on(chat, url, monkeypatch):
    code, out, err = chat("copy " * 300, "copy 1", args=("--url", url, "--max-new-tokens", "4", "--temperature", "0"))
    assert code == Exit.OK
    assert "the server refuses this (400)" in err
    assert out.strip()
    monkeypatch.setenv("ERNIE_API_KEY", "sk-another-key-0123456")
    code, _, err = chat("copy 1", args=("--url", url))
    assert (code, "(401)" in err, "set $ERNIE_API_KEY" in err) == (Exit.USAGE, True, True)


class Terminal:
    """``ernie chat`` on a pseudo-terminal of its own, as a shell starts it: Ctrl-C is a byte that is typed."""

    def __init__(self, *arguments):
        self.pid, self.screen = pty.fork()
        if self.pid == 0:  # the new process, whose terminal this is
            signal.signal(signal.SIGINT, signal.default_int_handler)
            script = "import sys; from erniecore.cli.app import main; sys.exit(main(sys.argv[1:]))"
            variables = {**os.environ, "TERM": "dumb", "OMP_NUM_THREADS": "1", "ERNIE_API_KEY": KEY}
            os.execve(sys.executable, [sys.executable, "-c", script, "chat", *map(str, arguments)], variables)
        self.shown = ""

    def wait_for(self, text):
        """Read until ``text`` was shown; returns what stood before it."""
        while text not in self.shown:
            self.shown += os.read(self.screen, 4096).decode(errors="replace")
        before, _, self.shown = self.shown.partition(text)
        return before

    def type(self, text):
        os.write(self.screen, text.encode())

    def end(self):
        self.type("/quit\n")
        while True:
            try:
                if not os.read(self.screen, 4096):
                    break
            except OSError:
                break
        os.close(self.screen)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_ctrl_c_stops_the_reply_and_tells_the_server(scripted, tmp_path):
    """What was said stays, the connection is closed, and the chat goes on; at the prompt Ctrl-C drops the line."""
    _Scripted.left.clear()
    talk = Terminal("--url", scripted, "--key-file", "")
    talk.wait_for("You: ")
    talk.type("talk forever\n")
    talk.wait_for("on and on")
    talk.type("\x03")
    talk.wait_for("(stopped)")
    talk.wait_for("You: ")
    _Scripted.left.wait()
    talk.type("half a line\x03")
    talk.wait_for("Ctrl-D leaves")
    talk.type(f"/save {tmp_path / 'row'}\n")
    talk.wait_for("saved")
    assert talk.end() == Exit.OK
    messages = json.loads((tmp_path / "row").read_text())["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant"]
    assert messages[1]["content"].startswith("on and on")


def test_a_terminal(url, tmp_path):
    """Every command once."""
    row, pairs = tmp_path / "row.jsonl", tmp_path / "pairs.jsonl"
    # near greedy: a hotter model may reply with halves of characters alone, which are no text that could be loaded again
    talk = Terminal("--url", url, "--temperature", "0.05", "--max-new-tokens", "60")
    talk.wait_for("You: ")
    talk.type("copy 1\n")
    talk.wait_for("You: ")
    for line, told in (
        ("/set max_new_tokens 5", ""),
        ("/set", "max_new_tokens=5"),
        ("/set temperatur 1", "did you mean temperature"),
        ("/undo", ""),
        ("copy 2", "Assistant: "),
        ("/retry", "Assistant: "),
        (f"/prefer new {pairs}", f"added a row to {pairs}"),
        (f"/save {row}", f"saved {row}"),
        ("/reset", "forgotten"),
        (f"/load {row}", "Loaded 2 messages"),
        ("/tool 3", "calls no tool"),
        ("/undo", "0 messages left"),
    ):
        talk.type(f"{line}\n")
        assert told in talk.wait_for("You: ")
    assert talk.end() == Exit.OK
    assert [m["role"] for m in json.loads(row.read_text())["messages"]] == ["user", "assistant"]
    assert json.loads(pairs.read_text())["chosen"] == json.loads(row.read_text())["messages"][1]


def test_ctrl_c_on_a_terminal_stops_the_reply_of_a_model_in_the_process(talker):
    talk = Terminal("--model", talker / "model", "--temperature", "2")
    talk.wait_for("You: ")
    for _ in range(2):
        talk.type("copy 1\n")
        talk.wait_for("Assistant: ")
        talk.type("\x03")
        talk.wait_for("You: ")
    assert talk.end() == Exit.OK
