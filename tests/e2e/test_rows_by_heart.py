"""What was trained is what is served: a model that has learned its rows by heart answers each of its own training prompts, by the
exported directory alone: in Python, and through a process of ``ernie serve`` over HTTP. One training per template.
"""

import base64
import http.client
import json
import socket
import time
from typing import NamedTuple

import pytest
from erniecore_ernie45.templating import builtin_source
from erniecore_ernie45_vl.templating import TEMPLATES as VL
from erniecore_generation.respond import generate_text
from erniecore_model_init.new_model import init_model
from erniecore_paddleocr_vl.templating import TEMPLATES as OCR
from processes import user_environ
from seers import make_seer

import erniecore
from erniecore.errors import Exit
from erniecore.types.records import IMAGE_MARKER, Media, Message, ToolCall

pytestmark = pytest.mark.slow

TEMPLATES = {**VL, **OCR}
SPREAD = 0.1  # of the first weights
SIZE = "hidden_size=64,intermediate_size=128,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2"
SIZE += f",initializer_range={SPREAD}"
SYSTEM = {"role": "system", "content": "Be brief."}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def user(content):
    return {"role": "user", "content": content}


def answer(content, reasoning=""):
    return {"role": "assistant", "content": content, **({"reasoning_content": reasoning} if reasoning else {})}


def call(city, reasoning=""):
    function = {"name": "weather", "arguments": json.dumps({"city": city})}
    return {**answer("", reasoning), "tool_calls": [{"id": city, "type": "function", "function": function}]}


def shown(home, file):
    url = f"data:image/png;base64,{base64.b64encode((home / file).read_bytes()).decode()}"
    return user([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}])


TEXTS = [
    {"messages": [user("2 plus 2"), answer("4")]},
    {"messages": [SYSTEM, user("3 plus 9"), answer("it is 12")]},
    {"messages": [user("1 plus 1"), answer("2"), user("and 5 more"), answer("7")]},
]
REASONED = {"messages": [user("name a color"), answer("red", "any one")]}
TOLD = {"role": "tool", "tool_call_id": "Oslo", "content": "3"}
CALLS = [
    {"messages": [user("is it warm?"), call("Oslo", "I ask"), TOLD, answer("no")], "tools": [WEATHER]},
    {"messages": [user("is it dry?"), call("Rome")], "tools": [WEATHER]},
]


class Heart(NamedTuple):
    """A kind of model and its rows; ``seen``: images, and what each of them is."""

    model: str
    rows: list
    seen: dict = {}


HEARTS = {
    "ernie45": Heart("ernie45", TEXTS),
    "thinking": Heart("ernie45", [*TEXTS, REASONED, *CALLS]),
    "ernie45-vl": Heart("ernie45-vl", [*TEXTS, REASONED], {"a.png": "a cat", "b.png": "two"}),
    "ernie45-vl-thinking": Heart("ernie45-vl", [*TEXTS, REASONED], {"a.png": "a cat", "b.png": "two"}),
    "paddleocr-vl": Heart("paddleocr-vl", TEXTS, {"a.png": "a cat", "b.png": "two"}),
}
#: templates whose usual prompt closes reasoning before it has begun
SWITCHED = {"ernie45-vl"}


class Learned(NamedTuple):
    """A directory of a model, its template, and each learned turn: messages before it, tools, the turn."""

    directory: object
    template: str
    turns: list

    def thinking(self, turn):
        return True if self.template in SWITCHED and "reasoning_content" in turn else None


@pytest.fixture(scope="module", params=HEARTS)
def learned(request, home, tmp_path_factory):
    """The model of one training on all its rows."""
    heart, directory = HEARTS[request.param], tmp_path_factory.mktemp(request.param)
    if heart.seen:
        base = make_seer(directory, heart.model, spread=SPREAD, template=request.param) / "model"
    else:
        base = init_model(
            heart.model, SIZE, home / "tok", directory / "base", seed_value=1, template=request.param
        ).path
    rows = [*heart.rows, *({"messages": [shown(directory, file), answer(text)]} for file, text in heart.seen.items())]
    data = directory / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "model.name": heart.model, "model.path": base, "method.name": "sft", "data.train": data, "data.max_seq_len": 512,
        "data.packing": "none", "train.batch_size": 2 * len(rows), "train.max_steps": 100, "train.learning_rate": 5e-3,
        "run.out": directory / "out", "log.report": "false",
    }  # fmt: skip
    erniecore.run(overrides=[f"{key}={value}" for key, value in settings.items()], console="none")
    turns = [
        (row["messages"][:i], row.get("tools", []), turn)
        for row in rows
        for i, turn in enumerate(row["messages"])
        if turn["role"] == "assistant"
    ]
    return Learned(directory / "out" / "model", request.param, turns)


def as_message(row):
    calls = [c["function"] for c in row.get("tool_calls", ())]
    calls = tuple(ToolCall(c["name"], c["arguments"]) for c in calls)
    content, media = row["content"], ()
    if isinstance(content, list):
        image, text = content
        content, media = f"{IMAGE_MARKER}{text['text']}", (Media(image["image_url"]["url"]),)
    return Message(row["role"], content, row.get("reasoning_content", ""), calls, media=media)


def test_it_answers_them_in_python(learned):
    opened = erniecore.open_model(learned.directory)
    assert opened.tokenizer.chat_template.source == builtin_source(learned.template, TEMPLATES)
    for before, tools, turn in learned.turns:
        options = {"tools": tools, "thinking": learned.thinking(turn), "max_new_tokens": 120}
        [got] = generate_text(opened.model, opened.tokenizer, [[as_message(row) for row in before]], **options)
        assert told(got.content, got.reasoning, got.tool_calls) == told_in(turn), before


def told(content, reasoning, calls):
    return (content or "").strip(), reasoning or "", [(c.name, json.loads(c.arguments)) for c in calls]


def told_in(row):
    """The same of a message as JSON."""
    calls = [c["function"] for c in row.get("tool_calls") or ()]
    calls = [(c["name"], json.loads(c["arguments"])) for c in calls]
    return (row.get("content") or "").strip(), row.get("reasoning_content") or "", calls


@pytest.fixture
def ask(learned, warm, tmp_path):
    """A question to ``ernie serve`` in a process of its own: body -> the first choice."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["serve", "--backend", "openai", "--model", learned.directory, f"port={port}", "rows=2"]
    process = warm.start(words, tmp_path, user_environ(OMP_NUM_THREADS="1"))

    def send(method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request(method, path, json.dumps(body) if body else None, {"content-type": "application/json"})
        with connection.getresponse() as response:
            status, content = response.status, response.read()
        connection.close()
        return status, content

    def healthy():
        try:
            return send("GET", "/health")[0] == 200
        except ConnectionRefusedError:
            return False

    while not healthy():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)

    def post(**body):
        status, content = send("POST", "/v1/chat/completions", {"temperature": 0, "max_tokens": 120, **body})
        assert status == 200, content
        return json.loads(content)["choices"][0]

    yield post
    process.send_signal(15)
    _, errors = process.communicate()
    assert process.returncode == Exit.OK, errors


def test_it_answers_them_through_the_server(learned, ask):
    for before, tools, turn in learned.turns:
        body = {"messages": before, **({"tools": tools} if tools else {})}
        if learned.thinking(turn):
            body["chat_template_kwargs"] = {"enable_thinking": True}
        choice = ask(**body)
        assert told_in(choice["message"]) == told_in(turn), before
        assert choice["finish_reason"] == ("tool_calls" if "tool_calls" in turn else "stop")
