"""Requests that arrive as users' do, and what each of them waited for.

Open loop: arrivals are a Poisson process, so a server that is too slow gets a queue, and a request's times count from the moment
at which it should have been sent. Closed loop: so many clients, each of which asks again when it has been answered. Answers
are streamed; prompts are token ids, so every server computes the same number of tokens. The client reads HTTP by itself: on
a small machine a library for it would take a share of what is measured.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np

QUANTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Lengths:
    """A distribution of whole numbers: ``constant:N``, ``uniform:LOW:HIGH`` or ``lognormal:MEDIAN:SIGMA:MOST``."""

    kind: str
    values: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """The distribution that a text names. Raises ``ValueError``."""
        kind, *numbers = text.split(":")
        sizes = {"constant": 1, "uniform": 2, "lognormal": 3}
        if len(numbers) != sizes.get(kind):
            raise ValueError(f"{text}: expected constant:N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:MOST")
        return cls(kind, tuple(map(float, numbers)))

    def draw(self, random: np.random.Generator, count: int) -> list[int]:
        """``count`` numbers, each at least 1."""
        if self.kind == "constant":
            return [int(self.values[0])] * count
        if self.kind == "uniform":
            return [int(n) for n in random.integers(int(self.values[0]), int(self.values[1]) + 1, count)]
        median, sigma, most = self.values
        drawn = np.exp(random.normal(math.log(median), sigma, count))
        return [int(n) for n in np.clip(np.round(drawn), 1, most)]


@dataclass(frozen=True)
class Target:
    """An OpenAI-compatible address: ``url`` ends with ``/v1``; ``model`` is its name there."""

    url: str
    model: str
    key: str = ""


@dataclass(frozen=True)
class Load:
    """What is asked for.

    Attributes:
        requests: how many. rate: arrivals per second of an open loop; 0: a closed loop of ``clients``.
        prompt, new: tokens. vocabulary: ids of prompts are below it. shared: tokens that all prompts begin with.
        probes: every so many-th request is for one token, whose time is that of the whole answer; 0: none.
    """

    requests: int
    prompt: Lengths
    new: Lengths
    rate: float = 0.0
    clients: int = 8
    vocabulary: int = 256
    shared: int = 0
    seed: int = 0
    probes: int = 0


@dataclass(frozen=True)
class Asked:
    """One request: seconds after the start, token ids, new tokens, whether it is a probe."""

    at: float
    ids: tuple[int, ...]
    new: int
    probe: bool = False


@dataclass
class Timed:
    """What became of a request; times in seconds since it should have been sent.

    Attributes:
        first: to its first chunk with choices, which the server sends with the first token. last: to its last one.
        tokens: new ones, as the server counts them. error: or empty. probe: it was for one token.
    """

    prompt: int
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    text: str = ""
    error: str = ""
    probe: bool = False

    @property
    def per_token(self) -> float:
        """Seconds per token after the first (TPOT)."""
        return (self.last - self.first) / max(1, self.tokens - 1)


def draw(load: Load) -> list[Asked]:
    """The requests of a load, always the same for a seed."""
    random = np.random.default_rng(load.seed)
    gaps = random.exponential(1 / load.rate, load.requests) if load.rate else np.zeros(load.requests)
    sizes, new = load.prompt.draw(random, load.requests), load.new.draw(random, load.requests)
    begin = tuple(random.integers(3, load.vocabulary, load.shared).tolist())
    probe = [bool(load.probes) and number % load.probes == load.probes - 1 for number in range(load.requests)]
    return [
        Asked(float(at), (*begin, *random.integers(3, load.vocabulary, size).tolist()), 1 if one else count, one)
        for at, size, count, one in zip(np.cumsum(gaps), sizes, new, probe, strict=True)
    ]


def run(target: Target, load: Load) -> tuple[list[Timed], float]:
    """Ask, and return what every request got with the seconds that all took."""
    return asyncio.run(_run(target, load))


async def _run(target: Target, load: Load) -> tuple[list[Timed], float]:
    requests = draw(load)
    started = time.perf_counter()
    if load.rate:
        found = await asyncio.gather(*(_arrive(target, asked, started) for asked in requests))
        return list(found), time.perf_counter() - started
    waiting, found = iter(requests), []

    async def client() -> None:
        for asked in waiting:
            found.append(await ask(target, asked, time.perf_counter()))

    await asyncio.gather(*(client() for _ in range(load.clients)))
    return found, time.perf_counter() - started


async def _arrive(target: Target, asked: Asked, started: float) -> Timed:
    await asyncio.sleep(max(0.0, started + asked.at - time.perf_counter()))
    return await ask(target, asked, started + asked.at)


def body_of(target: Target, asked: Asked) -> dict[str, Any]:
    """A completion of exactly ``asked.new`` tokens."""
    return {
        "model": target.model, "prompt": list(asked.ids), "max_tokens": asked.new, "temperature": 0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip


async def ask(target: Target, asked: Asked, due: float) -> Timed:
    """One streamed completion. Failures are counted, not raised.

    Args:
        due: when it should have been sent, by ``time.perf_counter``.
    """
    timed = Timed(len(asked.ids), probe=asked.probe)
    try:
        async with aclosing(stream(target, "/completions", body_of(target, asked))) as chunks:
            async for chunk in chunks:
                now = time.perf_counter() - due
                if "error" in chunk:
                    timed.error = str(chunk["error"].get("message", chunk["error"]))
                    break
                if chunk.get("usage"):
                    timed.tokens = int(chunk["usage"]["completion_tokens"])
                if chunk.get("choices"):
                    timed.first, timed.last = timed.first or now, now
                    timed.text += chunk["choices"][0].get("text") or ""
    except (OSError, ValueError, IndexError, asyncio.IncompleteReadError) as error:
        timed.error = f"{type(error).__name__}: {error}"
    if not timed.error and not timed.tokens:
        timed.error = "no tokens"
    return timed


async def stream(target: Target, route: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """The JSON objects of a streamed answer as they come; closing the generator closes the connection.

    Raises:
        ValueError: a status other than 200. OSError: no connection.
    """
    async with _answer(target, route, body) as (status, lines):
        if status != 200:
            raise ValueError(f"status {status}")
        async for line in lines:
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                yield json.loads(line[6:])


async def whole(target: Target, route: str, body: dict[str, Any]) -> tuple[int, Any]:
    """(status, JSON) of an answer that is not streamed. Raises ``OSError`` where there is none."""
    async with _answer(target, route, body) as (status, lines):
        text = b"".join([line async for line in lines])
    return status, json.loads(text)


@asynccontextmanager
async def _answer(target: Target, route: str, body: dict[str, Any]) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
    """(status, lines of the body); the connection lives as long as the block."""
    parts = urlsplit(target.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=1 << 20)
    try:
        data = json.dumps(body).encode()
        head = f"POST {parts.path}{route} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
        head += f"authorization: Bearer {target.key}\r\n" if target.key else ""
        writer.write(f"{head}content-length: {len(data)}\r\nconnection: close\r\n\r\n".encode() + data)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        chunked = False
        while (line := await reader.readline()).strip():
            chunked = chunked or line.lower().replace(b" ", b"").startswith(b"transfer-encoding:chunked")
        yield status, _lines(reader, chunked=chunked)
    finally:
        writer.close()


async def _lines(reader: asyncio.StreamReader, *, chunked: bool) -> AsyncIterator[bytes]:
    """Lines of a body, up to its end."""
    pending = b""
    while True:
        if chunked:
            size = int((await reader.readline()).split(b";")[0], 16)
            part = (await reader.readexactly(size + 2))[:-2]
        else:
            part = await reader.read(1 << 16)
        if not part:
            if pending:
                yield pending
            return
        *whole, pending = (pending + part).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r")


def summary(found: Sequence[Timed], seconds: float, *, ttft: float, tpot: float) -> dict[str, Any]:
    """Rates and percentiles of a load; ``goodput`` counts requests whose first token came within ``ttft`` seconds and the others
    within ``tpot`` each.

    ``ttft_ms`` is the time to the first chunk, which a server that holds half characters back sends with a later token;
    ``one_token_ms`` that of the whole answer of a probe, which means the same on every server."""
    good = [timed for timed in found if not timed.error]
    probes = [timed for timed in good if timed.probe]
    kept = [timed for timed in good if timed.first <= ttft and timed.per_token <= tpot]
    told: dict[str, Any] = {
        "requests": len(found), "failed": len(found) - len(good), "seconds": round(seconds, 2),
        "requests_per_s": round(len(good) / seconds, 3), "goodput_per_s": round(len(kept) / seconds, 3),
        "new_tokens_per_s": round(sum(timed.tokens for timed in good) / seconds, 1),
        "all_tokens_per_s": round(sum(timed.tokens + timed.prompt for timed in good) / seconds, 1),
    }  # fmt: skip
    errors = sorted({timed.error for timed in found if timed.error})
    if errors:
        told["errors"] = errors[:5]
    others = [timed for timed in good if not timed.probe]
    values = {"ttft_ms": [t.first for t in others], "tpot_ms": [t.per_token for t in others if t.tokens > 1]}
    values |= {"e2e_ms": [t.last for t in others], "one_token_ms": [t.last for t in probes]}
    for name, times in values.items():
        for q in QUANTILES if times else ():
            told[f"{name}_p{q}"] = round(1000 * float(np.percentile(times, q)), 1)
    return told
