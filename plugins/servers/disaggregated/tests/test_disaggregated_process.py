"""The server as users start it, over TCP: routes, administration, metrics, a server that stands still, one that is killed."""

import base64
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from erniecore_openai.adapters import models_of
from erniecore_openai.config import OpenAIConfig
from erniecore_openai.serving import read_model
from erniecore_openai.state import Serving
from openai_client import Client
from processes import await_end, user_environ
from seers import make_seer
from small_videos import video
from talker import make_adapter, roomy

from erniecore.cli.app import main
from erniecore.errors import Exit

KEY = "sk-a-key-for-tests-0123"
PIPE = subprocess.PIPE
BODY = {"max_tokens": 12, "temperature": 1.2, "seed": 3, "n": 2, "logprobs": 2, "echo": True}


OBJECT = {
    "type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"],
    "additionalProperties": False,
}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": OBJECT}}]

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A model that sees and calls tools, with room for long prompts; ``a.png`` and others beside it."""
    home = make_seer(tmp_path_factory.mktemp("seer"), videos=True)
    found = roomy(home, home / "roomy", 4096)
    (found / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return found


class Server:
    """``ernie serve --backend disaggregated`` with one process for each role."""

    def __init__(self, model, adapter, log, port=0):
        argv = [
            "serve",
            "--backend",
            "disaggregated",
            "--model",
            str(model),
            f"port={port}",
            "transport=tcp",
            "decode=1",
            "name=model",
            "--adapter",
            f"loud={adapter}",
        ]
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "erniecore", *argv, "threads=1"], stdout=PIPE, stderr=file, text=True,
                env=user_environ(ERNIE_API_KEY=KEY),
            )  # fmt: skip
        first = self.process.stdout.readline()
        assert " at http://" in first, log.read_text()
        self.port = int(re.search(r":(\d+)/v1", first)[1])

    @contextmanager
    def open(self, method, path, body=None, key=KEY):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        yield response
        response.close()
        connection.close()

    def ask(self, method, path, body=None, key=KEY):
        with self.open(method, path, body, key) as response:
            return response.status, json.loads(response.read())


@pytest.fixture(scope="module")
def adapter(directory, tmp_path_factory):
    return make_adapter(directory, tmp_path_factory.mktemp("adapter") / "loud", 2)


@pytest.fixture(scope="module")
def single(directory, adapter):
    """A client of the server of one process."""
    settings = OpenAIConfig(name="model", adapters={"loud": str(adapter)})
    model = read_model(settings, directory)
    model.engine.start()
    serving = Serving(settings)
    serving.open(*models_of(model, settings.adapters, directory))
    yield Client(serving)
    serving.close()
    model.engine.stop()


@pytest.fixture(scope="module")
def server(directory, adapter, tmp_path_factory):
    found = Server(directory, adapter, tmp_path_factory.mktemp("server") / "stderr")
    yield found
    found.process.kill()
    found.process.communicate()


def test_answers_are_those_of_the_server_of_one_process(server, single):
    """Those of the base, and those of an adapter on it."""
    texts = set()
    for name in ("model", "loud"):
        for prompt in ("a longer text that is copied " * 9, "b"):
            status, expected = single.complete(prompt, **BODY, model=name)
            told = server.ask("POST", "/v1/completions", {"prompt": prompt, **BODY, "model": name})
            assert (told[0], told[1]["choices"], told[1]["usage"]) == (status, expected["choices"], expected["usage"])
            texts.add(told[1]["choices"][0]["text"])
    assert len(texts) == 4
    assert [m["id"] for m in server.ask("GET", "/v1/models")[1]["data"]] == ["model", "loud"]


def content(kind, data, text):
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    part = kind.partition("/")[0]
    return [
        {"type": f"{part}_url", f"{part}_url": {"url": url}},
        {"type": "text", "text": text},
        {"type": "text", "text": " What is it?" * 9},
    ]


def bodies(home):
    """Requests with images, videos, forms, tools and adapters, several completions each."""
    images = [content("image/png", (home / f"{name}.png").read_bytes(), "What?") for name in "abc"]
    film = content("video/mp4", video(20, size=(84, 56)), "What?")
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": OBJECT}}
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    yield "image", {"messages": [{"role": "user", "content": images[0] + images[2]}], "n": 2}
    yield "video", {"messages": [{"role": "user", "content": film}], "model": "loud"}
    yield "form", {"messages": [{"role": "user", "content": images[1]}], "n": 2, "response_format": shape}
    yield "calls", {"messages": [{"role": "user", "content": "a"}], "n": 2, "tools": TOOLS, "tool_choice": "required"}
    yield "both", {"messages": [{"role": "user", "content": images[0]}], "tools": strict, "response_format": shape}
    yield "seen call", {"messages": [{"role": "user", "content": images[2]}], "tools": strict, "tool_choice": "required",
                        "model": "loud"}  # fmt: skip


def test_images_videos_forms_tools_and_adapters_too(server, single, directory):
    """Bit by bit: log-probabilities are compared as they are written."""
    kinds = set()
    for name, body in bodies(directory.parent):
        body = {"max_tokens": 90, "temperature": 1.3, "seed": 5, "logprobs": True, "top_logprobs": 2, **body}
        status, expected = single.chat(**body)
        told = server.ask("POST", "/v1/chat/completions", body)
        kinds |= {choice["finish_reason"] for choice in expected.get("choices", ())}
        assert status == 200, (name, expected)
        for answer in (expected, told[1]):  # names of calls are random
            for choice in answer["choices"]:
                for call in choice["message"].get("tool_calls", ()):
                    del call["id"]
        assert (told[0], told[1]["choices"], told[1]["usage"]) == (200, expected["choices"], expected["usage"]), name
    assert kinds == {"stop", "length", "tool_calls"}
    status, refused = server.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]})  # fmt: skip
    assert (status, refused["error"]["code"]) == (400, "invalid_media")


def test_operators_see_processes_and_change_roles_with_the_key_alone(server):
    status, told = server.ask("GET", "/admin/workers")
    assert status == 200
    assert [(w["name"], w["role"], w["epoch"], w["status"]) for w in told["workers"]] == [
        ("worker-0", "prefill", 1, "open"), ("worker-1", "decode", 2, "open")
    ]  # fmt: skip
    assert server.ask("GET", "/admin/workers", key="another")[0] == 401
    status, refused = server.ask("POST", "/admin/switch", {"worker": "worker-1", "role": "prefill"})
    assert (status, refused["error"]["code"]) == (409, "not_switched")
    assert "worker-1 is the last one that is open for decode" in refused["error"]["message"]
    assert server.ask("POST", "/admin/switch", {"worker": "nobody", "role": "prefill"})[0] == 404
    assert server.ask("POST", "/admin/switch", {"worker": "worker-1", "role": "cook"})[0] == 400


def test_metrics_have_the_names_of_the_field(server):
    assert server.ask("POST", "/v1/completions", {"prompt": "b", "max_tokens": 9, "ignore_eos": True})[0] == 200
    with server.open("GET", "/metrics") as response:
        text = response.read().decode()
    values = {name: float(value) for name, value in re.findall(r"^(\S+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)}
    assert values["vllm:nixl_bytes_transferred_sum"] > 0
    assert values["vllm:nixl_xfer_time_seconds_count"] > 0
    assert values["vllm:nixl_num_failed_transfers_total"] == values["fastdeploy:send_cache_failed_num_total"] == 0
    assert values['ernie:worker_up{role="decode",worker="worker-1"}'] == 1
    assert values['ernie:role_switches_total{outcome="refused"}'] == 1
    assert values["fastdeploy:generation_tokens_total"] > 0


def test_a_server_that_stood_still_goes_on(server):
    body = {"prompt": "b", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
    expected = server.ask("POST", "/v1/completions", body)[1]["choices"][0]["text"]
    with server.open("POST", "/v1/completions", {**body, "stream": True}) as response:
        lines = [response.readline() for _ in range(8)]
        os.kill(server.process.pid, signal.SIGSTOP)
        time.sleep(0.5)  # its processes go on meanwhile
        os.kill(server.process.pid, signal.SIGCONT)
        text = (b"".join(lines) + response.read()).decode()
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
    assert text.endswith("data: [DONE]\n\n")


def streamed(lines):
    """The text of a streamed completion, as far as it came."""
    chunks = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    return "".join(chunk["choices"][0].get("delta", {}).get("content") or "" for chunk in chunks if chunk["choices"])


def test_a_process_that_is_lost_in_a_completion_about_an_image_is_made_up_for(server, single, directory):
    """By another try, with the images that the server still has."""
    body = {
        "messages": [{"role": "user", "content": content("image/png", (directory.parent / "c.png").read_bytes(), "")}]
    }
    body |= {"max_tokens": 300, "temperature": 1.1, "seed": 8, "ignore_eos": True}
    expected = single.chat(**body)[1]["choices"][0]["message"]["content"]
    with server.open("POST", "/v1/chat/completions", {**body, "stream": True}) as response:
        lines = [response.readline() for _ in range(20)]
        for worker in server.ask("GET", "/admin/workers")[1]["workers"]:
            os.kill(worker["pid"], signal.SIGKILL)
        lines += response.read().splitlines()
    assert streamed(lines) == expected
    assert lines[-2:] == [b"data: [DONE]", b""]
    with server.open("GET", "/metrics") as response:
        assert b"ernie:requests_retried_total 1.0" in response.read()


def test_a_server_that_is_killed_takes_its_processes_with_it_and_the_next_one_answers_the_same(
    server, directory, adapter, tmp_path
):
    """The last one: the server is gone after it. Clients see a connection that breaks, and ask again; seeds make it the same."""
    pids = [worker["pid"] for worker in server.ask("GET", "/admin/workers")[1]["workers"]]
    body = {"messages": [{"role": "user", "content": "b"}], "max_tokens": 400, "temperature": 1.1, "seed": 9}
    body |= {"ignore_eos": True, "stream": True}
    lines = []
    with server.open("POST", "/v1/chat/completions", {**body, "max_tokens": 3000}) as response:
        lines += [response.readline() for _ in range(40)]
        server.process.kill()
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            response.read()
    server.process.wait()
    await_end(pids)
    with pytest.raises(ConnectionRefusedError):
        server.ask("GET", "/health")
    begun = streamed(lines)
    again = Server(directory, adapter, tmp_path / "stderr", server.port)
    try:
        with again.open("POST", "/v1/chat/completions", body) as response:
            whole = streamed(response.read().splitlines())
    finally:
        again.process.terminate()
        again.process.communicate()
    assert len(whole) > len(begun) > 0
    assert whole.startswith(begun)
    assert again.process.returncode == 0


def test_settings_with_which_tries_could_differ_are_refused(directory, capsys):
    argv = ["serve", "--backend", "disaggregated", "--model", str(directory), "invariant=false"]
    assert main(argv) == Exit.USAGE
    assert "processes have to compute the same bits" in capsys.readouterr().err
    shutil.copytree(directory, directory.parent / "broken", ignore=shutil.ignore_patterns("*.safetensors*"))
    assert main([*argv[:-2], str(directory.parent / "broken"), "port=0"]) == Exit.ENVIRONMENT
    assert "a process of the server did not start" in capsys.readouterr().err
