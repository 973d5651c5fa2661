"""``ernie compare-servers``: answers of two real servers, and of stand-ins with the shapes of other ones."""

import http.server
import json
import threading
from contextlib import contextmanager

import pytest
from erniecore_openai.app import make_app
from erniecore_openai.plugin import OpenAIConfig
from erniecore_openai.serving import read_model
from erniecore_openai.state import Serving
from erniecore_serve.client import Client
from erniecore_serve.comparing import Answer, Token, answer_of, compare
from erniecore_serve.http import listening

from erniecore.api import EnvironmentFault, UsageError
from erniecore.cli.app import main
from erniecore.errors import Exit

KEY = "sk-a-key-for-tests-0123"


@contextmanager
def serving(directory, key="", **settings):
    """The address of a server in this process."""
    config = OpenAIConfig(port=0, rows=2, **settings)
    found = Serving(config)
    with listening(make_app(found, key), config.host, config.port, header_seconds=10.0, connections=64) as url:
        model = read_model(config, directory)
        model.engine.start()
        found.open(model)
        yield url
        model.engine.stop(drain=False)
    found.close()


@pytest.fixture(scope="module")
def first(talker):
    with serving(talker / "model", KEY, name="tiny") as url:
        yield url


@pytest.fixture
def data(tmp_path):
    """Four conversations; the last one's answer is to be written, too."""
    file = tmp_path / "rows.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": f"copy {n}"}, {"role": "assistant", "content": f"{n}"}]}
        for n in (1, 22, 333)
    ]
    rows.append({"messages": [{"role": "system", "content": "copy"}, *rows[0]["messages"]]})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def keys(tmp_path):
    file = tmp_path / "key"
    file.write_text(KEY)
    return file


def asked(url, other, data, keys, *more):
    arguments = ("compare-servers", url, other, "--data", data, "--key-file", keys, "--max-new-tokens", 8, *more)
    return main([*map(str, arguments)])


def test_two_servers_of_one_model_answer_alike(first, talker, data, keys, tmp_path, capsys):
    out = tmp_path / "report.json"
    with serving(talker / "model", name="second") as second:
        code = asked(first, f"{second}/v1/", data, keys, "--out", out)
    told, found = capsys.readouterr(), json.loads(out.read_text())
    assert code == Exit.OK, told.err
    assert (found["rows"], found["equal"], found["differences"]) == (4, 4, [])
    assert found["new_tokens"] > 4
    assert found["largest_logprob_difference"] == 0
    assert all(400 <= one["a"] < 500 and one["a"] == one["b"] for one in found["refusals"])
    assert "4 of 4 rows equal" in told.out
    assert "second at" in told.out


def test_another_model_differs_from_a_token_on_by_a_margin(first, talker, data, keys, tmp_path, capsys):
    other = tmp_path / "other"
    arguments = (
        "model",
        "init",
        "--model",
        "ernie45",
        "--size",
        "tiny",
        "--tokenizer",
        talker / "model",
        "--out",
        other,
    )
    assert main([*map(str, arguments), "--seed", "9"]) == Exit.OK
    capsys.readouterr()
    with serving(other) as second:
        code = asked(first, second, data, keys, "--json")
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert (code, found["equal"], len(found["differences"])) == (Exit.CHECKPOINT, 0, 4)
    difference = found["differences"][0]
    assert difference["where"].endswith("rows.jsonl:1")
    assert "text" in difference["unequal"]
    assert "prompt" not in difference["unequal"]
    assert difference["token"] == 0
    assert "rows.jsonl:1: " in told.err


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"prompt": (1, 2, 4)}, "prompt"),
        ({"finish": "length"}, "finish"),
        ({"text": "b"}, "text"),
        ({"calls": (("f", "{}"),)}, "calls"),
        ({"status": 500}, "status"),
    ],
)
def test_every_field_is_compared(change, name):
    same = {"status": 200, "text": "a", "finish": "stop", "prompt": (1, 2, 3)}
    assert compare("x:1", Answer(**same), Answer(**same)).unequal == {}
    assert set(compare("x:1", Answer(**same), Answer(**{**same, **change})).unequal) == {name}
    assert compare("x:1", Answer(**same), Answer(**{**same, "prompt": None})).unequal == {}


def test_margins_are_of_the_first_token_that_differs():
    a = Answer(200, "ab", tokens=(Token("a", -0.1, {}), Token("b", -0.7, {"b": -0.7, "c": -0.71})))
    b = Answer(200, "ac", tokens=(Token("a", -0.2, {}), Token("c", -0.6, {"c": -0.6, "d": -1.0})))
    found = compare("x:1", a, b)
    assert found.token == 1
    assert found.margins == (pytest.approx(0.01), None)
    assert found.logprob == pytest.approx(0.1)
    assert compare("x:1", a, Answer(200, "a", tokens=a.tokens[:1])).token == 1


class FastDeployLike(http.server.BaseHTTPRequestHandler):
    """Answers in FastDeploy's shapes: prompt ids in the message, no ``/tokenize``, no log-probabilities unless started so."""

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "tokenize" in self.path:
            return self._reply(404, {})
        if self.path.endswith("moved"):
            self.send_response(302)
            self.send_header("location", "/v1/chat/completions")
            return self.end_headers()
        if body.get("logprobs"):
            return self._reply(400, {"error": {"message": "logprobs are off"}})
        message = {"content": "4", "reasoning_content": "2 and 2", "tool_calls": None}
        message |= {"prompt_token_ids": [5, 6, 7]} if body.get("return_token_ids") else {}
        usage = {"prompt_tokens": 3, "completion_tokens": 5}
        self._reply(200, {"choices": [{"message": message, "finish_reason": "stop", "logprobs": None}], "usage": usage})

    def _reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def other():
    """A client of the stand-in."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FastDeployLike)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Client(f"127.0.0.1:{server.server_port}", KEY)
    server.shutdown()
    server.server_close()


def test_answers_of_other_servers_are_read(other):
    found = answer_of(other, "fake", {"messages": [{"role": "user", "content": "2 + 2"}]}, 8)
    assert found == Answer(200, "<think>2 and 2</think>4", "stop", (5, 6, 7), 3, 5)


def test_no_redirect_is_followed(other):
    assert other.ask("/moved", {})[0] == 302


def test_what_cannot_be_asked_is_told(first, data, keys, tmp_path, capsys):
    with pytest.raises(UsageError, match="plain text"):
        Client("http://192.0.2.1/v1", KEY)
    with pytest.raises(EnvironmentFault, match="not reachable"):
        Client("127.0.0.1:9").ask("/health")
    assert asked(first, first, data, keys) == Exit.ENVIRONMENT  # its key is the first server's alone
    assert "401" in capsys.readouterr().err
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "a document"}\n')
    assert asked(first, first, text, keys, "--other-key-file", keys) == Exit.USAGE
    assert "text.jsonl:1" in capsys.readouterr().err
