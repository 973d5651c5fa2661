"""Two hundred requests that are wrong: each is answered with a 4xx and an error object, and the next one is answered well."""

import asyncio
import json

import httpx
import pytest
from erniecore_openai.app import make_app
from erniecore_openai.plugin import OpenAIConfig
from erniecore_openai.serving import read_model
from erniecore_openai.state import Serving

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GOOD = {CHAT: {"messages": [{"role": "user", "content": "a"}]}, TEXT: {"prompt": "a"}, "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [5]}, "/v1/abort": {"abort_all": True}}  # fmt: skip
#: values of a type that no field but free text has
WRONG = [[], {}, "x", [[]], [{}], -1, 1.5, True, "\x00", 10**30, [None], {"": None}]
FIELDS = ("temperature", "top_p", "n", "max_tokens", "stop", "seed", "logit_bias", "stream", "stream_options", "messages",
          "tools", "logprobs", "min_tokens")  # fmt: skip
#: what some field takes after all
RIGHT = {
    ("stop", "x"), ("stop", "\x00"), ("temperature", "1.5"), ("logit_bias", "{}"), ("stream", "True"), ("tools", "[]"),
    ("logprobs", "True"), ("stop", "[]"),
}  # fmt: skip


def deep(depth):
    return "[" * depth + "]" * depth


def bodies():
    """(path, content, headers)."""
    for path in GOOD:
        raw = [
            b"", b"{", b"null", b"[]", b'"x"', b"1", b"{} {}", b"\xff\xfe\x00", b"\x80abc", '{"prompt": "é"}'.encode("latin-1"),
            json.dumps(GOOD[path]).encode("utf-16"), b"{'prompt': 1}", b'{"a": NaN}', b'{"n": 1e999}', b'{"a": -Infinity}',
            deep(5000).encode(), f'{{"messages": {deep(3000)}}}'.encode(), b'{"prompt": "\\ud800"}',
            b'{"n": ' + b"9" * 5000 + b"}",
            b'{"' + b"k" * 9000 + b'": 1}', b'{"prompt": "' + b"x" * 70_000 + b'"}', b'{"messages": 3, "prompt": 3}',
            b"--x\r\ncontent-disposition: form-data\r\n\r\n", b'{"unknown": 1}',
        ]  # fmt: skip
        for content in raw:
            yield path, content, {}
        for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonx", "\x01"):
            yield path, json.dumps(GOOD[path]).encode(), {"content-type": kind}
    for field in FIELDS:
        for value in WRONG:
            if (field, str(value)) not in RIGHT:
                yield CHAT, json.dumps({**GOOD[CHAT], field: value}).encode(), {}


@pytest.fixture(scope="module")
def app(talker):
    model = read_model(OpenAIConfig(), talker / "model")
    model.engine.start()
    serving = Serving(OpenAIConfig(max_body_bytes=1 << 16, max_choices=4))
    serving.open(model)
    yield make_app(serving)
    serving.close()
    model.engine.stop(drain=False)


def test_malformed_requests_are_the_callers_fault(app):
    cases = list(bodies())
    assert len(cases) >= 200

    async def ask():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            found = []
            for path, content, headers in cases:
                given = {"content-type": "application/json", **headers}
                response = await client.post(path, content=content, headers=given)
                error = response.json().get("error", {}) if response.status_code != 200 else {}
                named = isinstance(error.get("message"), str) and len(error["message"]) < 2000
                if response.status_code not in (400, 413) or not named:
                    found.append((path, content[:80], headers, response.status_code, response.text[:200]))
            last = await client.post(TEXT, json={"prompt": "a", "max_tokens": 1})
            return found, last.status_code

    found, last = asyncio.run(ask())
    assert not found, f"{len(found)} of {len(cases)}: {found[:5]}"
    assert last == 200
