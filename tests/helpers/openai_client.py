"""Asks the application of the server ``openai`` without a network, and makes an engine say what a test needs."""

import asyncio
import json

import httpx
import numpy as np
from erniecore_openai.app import make_app

HELLO = [{"role": "user", "content": "copy this"}]


class Client:
    """Asks the application; answers are (status, JSON), those of streams (status, list of events)."""

    def __init__(self, serving, key=""):
        self.serving, self.app = serving, make_app(serving, key)

    def send(self, method, path, **options):
        async def ask():
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test") as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())

    def post(self, path, **body):
        response = self.send("POST", path, json=body)
        if response.headers["content-type"].startswith("text/event-stream"):
            return response.status_code, events(response.text)
        return response.status_code, response.json()

    def chat(self, **body):
        return self.post("/v1/chat/completions", **{"messages": HELLO, "max_tokens": 12, "temperature": 0, **body})

    def complete(self, prompt="copy", **body):
        return self.post("/v1/completions", prompt=prompt, **{"max_tokens": 12, "temperature": 0, **body})


def events(text):
    """The data of server-sent events; the last one is ``[DONE]``."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def together(parts):
    """Functions of tool calls that came in parts, by their ``index``."""
    found = []
    for part in parts:
        if "id" in part:
            found.append({"name": part["function"]["name"], "arguments": ""})
        assert part["index"] == len(found) - 1
        found[-1]["arguments"] += part["function"]["arguments"]
    return found


class Forced:
    """A constraint that leaves one completion."""

    def __init__(self, ids, vocab_size):
        self.left, self.vocab_size = list(ids), vocab_size

    def allowed(self):
        mask = np.zeros(self.vocab_size, bool)
        mask[self.left[0]] = True
        return mask

    def accept(self, token):
        assert token == self.left.pop(0)

    def done(self):
        return not self.left


class Led:
    """A constraint whose first tokens are given; each has to be allowed."""

    def __init__(self, inner, ids):
        self.inner, self.left = inner, list(ids)

    def allowed(self):
        mask = self.inner.allowed()
        if self.left:
            assert mask[self.left[0]]
            return np.arange(len(mask)) == self.left[0]
        return mask

    def accept(self, token):
        self.inner.accept(token)
        self.left = self.left[1:]

    def done(self):
        return self.inner.done()
