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
from contextlib import ExitStack
from pathlib import Path

import pytest
from malformed import REFUSED, bodies, raw_requests

from erniecore.cli.app import main
from erniecore.errors import Exit

KEY = "sk-a-key-for-tests-0123"
PIPE = subprocess.PIPE
#: most connections to the server
CONNECTIONS = 24
#: seconds between two questions
PAUSE = 0.02


#: a request whose completions are long
LONG = {"prompt": "a secret", "max_tokens": 60, "ignore_eos": True, "seed": 5}


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
            f"connections={CONNECTIONS}",
            "max_body_bytes=65536",
            "drain_seconds=600",
        ]
        variables = {k: v for k, v in os.environ.items() if not k.startswith("ERNIE_")}
        self.log, self.name = log, model.parent.name
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "erniecore", *words], stdout=PIPE, stderr=file, text=True,
                env={**variables, "ERNIE_API_KEY": KEY, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def open(self, method, path, body=None):
        content = None if body is None else json.dumps(body)
        return self.send(method, path, content, {"content-type": "application/json"})

    def send(self, method, path, content, headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(method, path, content, {"authorization": f"Bearer {KEY}", **headers})
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
        connection = self.open("POST", "/v1/completions", {**LONG, "n": n, "stream": True})
        response = connection.getresponse()
        assert response.status == 200
        while not (first := response.readline()).startswith(b"data: "):
            pass  # comments
        response.first = first
        return connection, response

    def counts(self):
        """Numbers of ``/metrics`` by name, without labels and histograms."""
        text = self.ask("GET", "/metrics")[1].decode()
        return {name: float(value) for name, value in re.findall(r"^([\w:]+) (\S+)$", text, re.MULTILINE)}

    def raw(self, data):
        """What is answered to bytes; nothing where the server did not read them all."""
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            try:
                connection.sendall(data)
                return received(connection)
            except (ConnectionResetError, BrokenPipeError):
                return b""

    def resources(self):
        """(bytes of memory, open files) as soon as no connection is closing and nothing is computed."""
        place = Path(f"/proc/{self.process.pid}")
        while (counts := self.counts())["fastdeploy:num_requests_running"] + counts["fastdeploy:num_requests_waiting"]:
            time.sleep(PAUSE)
        files = []
        for _ in range(10):
            files.append(len(list((place / "fd").iterdir())))
            time.sleep(PAUSE)
        line = next(x for x in (place / "status").read_text().splitlines() if x.startswith("VmRSS"))
        return int(line.split()[1]) << 10, min(files)


def received(connection):
    """All that comes until the server closes."""
    answer = b""
    while part := connection.recv(1 << 16):
        answer += part
    return answer


def error_of(answer):
    """(status, error object) of an answer as bytes."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body).get("error", {"message": ""})


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


def test_malformed_requests_are_refused_and_leave_nothing_behind(server):
    """Two hundred and more, twice, beside a request whose answer nothing changes."""
    authorization = f"authorization: Bearer {KEY}\r\n"
    cases, raws = list(bodies()), raw_requests(authorization)
    assert len(cases) + len(raws) >= 200
    before = None
    for _ in range(2):
        connection, response = server.stream(4)
        answers = [(name, answer, REFUSED) for name, answer in asked(server, cases)]
        answers += [(data[:60], server.raw(data), statuses) for data, statuses in raws]
        wrong = []
        for name, answer, statuses in answers:
            assert b"secret" not in answer
            status, error = error_of(answer) if answer else (0, {"message": ""})
            if status not in statuses or len(error["message"]) > 2000:
                wrong.append((name, status, answer[:300]))
        assert not wrong, f"{len(wrong)} of {len(answers)}: {wrong[:5]}"
        told = texts(response.first + response.read())
        response.close()
        connection.close()
        if before is None:
            before = server.resources()
    after = server.resources()
    assert after[0] - before[0] < 4 << 20
    assert after[1] <= before[1]
    whole = json.loads(server.ask("POST", "/v1/completions", {**LONG, "n": 4})[1])
    assert {c["index"]: c["text"] for c in whole["choices"]} == told
    assert server.health() == 200


def asked(server, cases):
    """(what, bytes of the answer) of malformed bodies."""
    for path, content, headers in cases:
        connection = server.send("POST", path, content, {"content-type": "application/json", **headers})
        response = connection.getresponse()
        yield (path, content[:60], headers), f"HTTP/1.1 {response.status}\r\n\r\n".encode() + response.read()
        connection.close()


def texts(stream):
    """Text of each choice of a stream."""
    found = {}
    for line in stream.decode().splitlines():
        for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
            found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return found


def test_slow_clients_are_ended_and_those_beyond_the_limit_are_told(server):
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"authorization: Bearer {KEY}\r\ncontent-length: 100\r\n\r\n"
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(CONNECTIONS)]
        for index, connection in enumerate(slow):
            connection.sendall(f"{head}{{".encode() if index % 2 else b"GET /health HT")
        refused = server.raw(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        answers = [received(connection) for connection in slow]
    status, error = error_of(refused)
    assert (status, error["type"], error["code"]) == (503, "service_unavailable_error", "too_many_connections")
    assert b"retry-after: 1" in refused
    assert not any(answers[::2])
    for answer in answers[1::2]:
        status, error = error_of(answer)
        assert (status, error["message"]) == (408, "the body took more than 1 s")
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


def test_the_device_is_opened_before_paddle_is_imported():
    """Else what the device puts into the environment comes too late, and the server computes on one core."""
    code = "import sys, erniecore_openai.serving; sys.exit('paddle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
