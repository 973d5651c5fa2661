"""The server as a process: the port before the model, clients that leave or dawdle, signals."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from erniecore.cli.app import main
from erniecore.errors import Exit

KEY = "sk-a-key-for-tests-0123"
PIPE = subprocess.PIPE
#: seconds between two questions
PAUSE = 0.02


class Server:
    """``ernie serve`` with one row, so that requests have to wait for each other."""

    def __init__(self, model, log):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        words = [
            "serve",
            "--backend",
            "openai",
            "--model",
            str(model),
            f"port={self.port}",
            "rows=1",
            "body_seconds=1",
            "keep_alive_seconds=0.01",
        ]
        variables = {k: v for k, v in os.environ.items() if not k.startswith("ERNIE_")}
        self.log, self.name = log, model.parent.name
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "erniecore", *words], stdout=PIPE, stderr=file, text=True,
                env={**variables, "ERNIE_API_KEY": KEY, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def open(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection

    def ask(self, method, path, body=None):
        connection = self.open(method, path, body)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, content

    def health(self):
        """The status of ``/health``, as soon as somebody listens."""
        while self.process.poll() is None:
            try:
                return self.ask("GET", "/health")[0]
            except ConnectionRefusedError:
                time.sleep(PAUSE)
        raise AssertionError(self.log.read_text())

    def stream(self, n):
        """A long request whose first chunk is here."""
        body = {"prompt": "a secret", "n": n, "max_tokens": 60, "ignore_eos": True, "stream": True}
        connection = self.open("POST", "/v1/completions", body)
        response = connection.getresponse()
        assert response.status == 200
        while not response.readline().startswith(b"data: "):
            pass  # comments
        return connection, response

    def counts(self):
        """Numbers of ``/metrics`` by name, without labels and histograms."""
        text = self.ask("GET", "/metrics")[1].decode()
        return {name: float(value) for name, value in re.findall(r"^([\w:]+) (\S+)$", text, re.MULTILINE)}

    def raw(self, data):
        """What is answered to bytes."""
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(data)
            answer = b""
            while part := connection.recv(1 << 16):
                answer += part
            return answer


@pytest.fixture(scope="module")
def server(talker, tmp_path_factory):
    found = Server(talker / "model", tmp_path_factory.mktemp("server") / "stderr")
    found.first = found.health()
    while found.health() != 200:
        time.sleep(PAUSE)
    yield found
    found.process.kill()
    found.process.communicate()


def test_the_port_answers_before_the_model_is_read(server):
    assert server.first == 503
    assert server.process.stdout.readline() == f"{server.name} at http://127.0.0.1:{server.port}/v1; stop with Ctrl-C\n"


def test_a_stream_that_waits_gets_comments(server):
    connection, response = server.stream(3)
    waiting = server.open("POST", "/v1/completions", {"prompt": "b", "max_tokens": 1, "stream": True})
    with waiting.getresponse() as answer:
        text = answer.read().decode()
    waiting.close()
    assert text.startswith(": waiting\n\n")
    assert text.endswith("data: [DONE]\n\n")
    assert response.read().endswith(b"data: [DONE]\n\n")
    response.close()
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_row(server, stream):
    before = server.counts()["ernie:requests_aborted_total"]
    if stream:
        connection, response = server.stream(100)
        response.close()
    else:
        body = {"prompt": "a secret", "n": 100, "max_tokens": 60, "ignore_eos": True}
        connection = server.open("POST", "/v1/completions", body)
        while not server.counts()["fastdeploy:num_requests_running"]:
            time.sleep(PAUSE)
    connection.close()
    while (counts := server.counts())["fastdeploy:num_requests_running"] or counts["fastdeploy:num_requests_waiting"]:
        time.sleep(PAUSE)
    assert counts["ernie:requests_aborted_total"] - before > 50


def test_an_aborted_request_ends_so(server):
    connection, response = server.stream(50)
    status, answer = server.ask("POST", "/v1/abort", {"abort_all": True})
    assert (status, len(json.loads(answer)["aborted"])) == (200, 1)
    assert b'"finish_reason":"abort"' in response.read()
    response.close()
    connection.close()


def test_slow_and_endless_requests_are_ended(server):
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
    )
    slow_body = server.raw(f"{head}content-length: 100\r\n\r\n{{".encode())
    assert slow_body.startswith(b"HTTP/1.1 408 ")
    assert b"the body took more than 1 s" in slow_body
    assert server.raw(b"GET /health HT") == b""
    long = server.raw(f"{head}content-length: {1 << 40}\r\n\r\n".encode())
    assert (long.startswith(b"HTTP/1.1 413 "), b"connection: close" in long.lower()) == (True, True)
    flood = "".join(f"x-{n}: {n}\r\n" for n in range(20_000))
    with suppress(ConnectionResetError, BrokenPipeError):
        assert server.raw(f"GET /health HTTP/1.1\r\nhost: x\r\n{flood}\r\n".encode())[:12] in (b"HTTP/1.1 400", b"")
    assert server.health() == 200


def test_running_answers_end_before_the_server_does(server):
    """The last one: the server is gone after it."""
    connection, response = server.stream(10)
    server.process.send_signal(signal.SIGTERM)
    while server.health() == 200:
        time.sleep(PAUSE)
    status, refused = server.ask("POST", "/v1/completions", {"prompt": "b"})
    assert (status, json.loads(refused)["error"]["code"]) == (503, "draining")
    text = response.read().decode()
    assert text.count('"finish_reason":"length"') == 10
    assert text.endswith("data: [DONE]\n\n")
    response.close()
    connection.close()
    assert server.process.wait() == 0
    printed = server.log.read_text()
    assert "a second signal ends at once" in printed
    assert "secret" not in printed
    assert KEY not in printed


def test_the_second_signal_ends_at_once():
    code = """
        import time
        from erniecore_serve.http import stop_asked
        with stop_asked() as asked:
            print("ready", flush=True)
            asked.wait()
            print("asked", flush=True)
            time.sleep(600)
    """
    words = [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines())]
    with subprocess.Popen(words, stdout=PIPE, text=True) as process:
        for line in ("ready\n", "asked\n"):
            assert process.stdout.readline() == line
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("settings", "variable", "code", "part"),
    [
        (["host=0.0.0.0"], "", Exit.USAGE, "a loopback address, or an API key"),
        (["host=example.com"], "", Exit.USAGE, "set $ERNIE_API_KEY, or key_file=FILE"),
        ([], "short", Exit.USAGE, "5 characters"),
        (["key_file=nowhere"], "", Exit.USAGE, "cannot read the API key"),
        (["api_key=abc"], "", Exit.USAGE, "api_key"),
    ],
)
def test_what_is_refused_before_anything_starts(talker, monkeypatch, capsys, settings, variable, code, part):
    monkeypatch.setenv("ERNIE_API_KEY", variable)
    assert main(["serve", "--backend", "openai", "--model", str(talker / "model"), *settings]) == code
    assert part in capsys.readouterr().err


def test_a_port_that_is_taken_is_told(talker, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"port={taken.getsockname()[1]}"
        assert main(["serve", "--backend", "openai", "--model", str(talker / "model"), port]) == Exit.ENVIRONMENT
    assert "cannot listen on this address" in capsys.readouterr().err
    assert not [thread for thread in threading.enumerate() if thread.name == "erniecore-http"]
