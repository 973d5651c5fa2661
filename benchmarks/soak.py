"""Mixed requests for a long time, with clients that leave at random moments: nothing may leak, and every answer is the one that
its request got when the server had nothing else to do.

Requests are drawn from a set that is asked first, one by one, for references: chats and completions, whole and streamed, greedy
and sampled with a seed, several choices, log-probabilities, stop strings, forms, calls of tools, prompts that begin alike, and
some that are refused, as calls of tools are where the template has no place for them. Every few seconds the clients pause; when
the server is idle its rows, the bytes of its prefix cache, its memory, its open files and its threads are noted, in ``soak.json``
beside the server's log. What is there after the first pauses must not grow.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import load, under_load

#: clients at a time, share of requests whose client leaves, seconds between pauses
CLIENTS, LEAVING, BETWEEN = 8, 0.3, 10.0
#: pauses before memory and files are compared, and bytes by which memory may then differ
WARM, SLACK = 3, 24 << 20
#: a form, as JSON and as a tool has it
FORM = {
    "type": "object", "required": ["fruit", "count"], "additionalProperties": False,
    "properties": {"fruit": {"enum": ["apple", "pear"]}, "count": {"type": "integer", "minimum": 1, "maximum": 99}},
}  # fmt: skip
#: bytes of the prefix cache: it is full soon
PREFIX = 2 << 20
_OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@dataclass(frozen=True)
class Case:
    """A request, its answer without streaming (None: what is refused), and its status."""

    route: str
    body: dict[str, Any]
    answer: Any
    status: int


@dataclass
class Seen:
    """The server at a pause, ``at`` seconds after the first request of the load."""

    at: float
    rss: int
    files: int
    threads: int
    running: float
    prefix: float


@dataclass
class Result:
    """What was asked, and what was wrong."""

    answered: int = 0
    left: int = 0
    refused: int = 0
    found: list[str] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)


def run(
    model: Path, home: Path, *, minutes: float, seed: int, settings: Sequence[str] = (), between: float = BETWEEN,
    think: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """A row of the benchmark; its ``found`` lists what was wrong. ``think``: mean seconds of a client between two requests."""
    settings = [f"prefix_bytes={PREFIX}", *settings]
    with under_load.ours(model, home / "soak.log", settings, rows=CLIENTS // 2) as (target, process):
        result = asyncio.run(_soak(target, process.pid, minutes, seed, (between, think)))
    (home / "soak.json").write_text(json.dumps([asdict(one) for one in result.seen]) + "\n", encoding="utf-8")
    log = (home / "soak.log").read_text(errors="replace")
    if "Traceback" in log:
        result.found.append(f"the server said: {log[-400:]}")
    result.found += leaks(result.seen)
    first, last = result.seen[min(WARM, len(result.seen)) - 1], result.seen[-1]
    return {
        "what": "soak", "minutes": minutes, "answered": result.answered, "left": result.left, "refused": result.refused,
        "pauses": len(result.seen), "rss_mib": f"{first.rss >> 20} to {last.rss >> 20}",
        "rss_mib_per_hour": round(slope(result.seen[len(result.seen) // 2 :]) * 3600 / (1 << 20), 1),
        "files": f"{first.files} to {last.files}", "threads": f"{first.threads} to {last.threads}", "found": result.found,
    }  # fmt: skip


def slope(seen: Sequence[Seen]) -> float:
    """Bytes of memory per second by which these differ (least squares); 0 for fewer than two."""
    if len(seen) < 2:
        return 0.0
    return float(np.polyfit([one.at for one in seen], [one.rss for one in seen], 1)[0])


def leaks(seen: Sequence[Seen]) -> list[str]:
    """What grew, or was not given back."""
    found = [f"{one.running:g} rows are taken though nobody asks" for one in seen if one.running]
    found += [f"the prefix cache has {one.prefix:g} bytes" for one in seen if one.prefix > PREFIX]
    if len(seen) <= WARM:
        return found
    first, last = seen[WARM - 1], seen[-1]
    if last.rss > first.rss + SLACK:
        found.append(f"memory grew from {first.rss} to {last.rss} bytes")
    for name in ("files", "threads"):
        before, after = getattr(first, name), getattr(last, name)
        if after > before:
            found.append(f"{name} grew from {before} to {after}")
    return found


def bodies(random: np.random.Generator) -> list[tuple[str, dict[str, Any]]]:
    """(route, request) of every kind, and several of each."""
    begin = random.integers(3, 290, 48).tolist()
    found: list[tuple[str, dict[str, Any]]] = []
    for n in range(6):
        ids = [*begin[: 16 * (n % 4)], *random.integers(3, 290, int(random.integers(1, 30))).tolist()]
        words = [{"role": "user", "content": f"copy {n * 137}"}]
        sampled = {"temperature": 1.2, "seed": n, "top_p": 0.9}
        found += [
            ("/completions", {"prompt": ids, "max_tokens": 24, "temperature": 0, "ignore_eos": True}),
            ("/completions", {"prompt": [ids, begin], "max_tokens": 12, "n": 2, **sampled}),
            ("/completions", {"prompt": ids, "max_tokens": 4, "echo": True, "logprobs": 2, "temperature": 0}),
            ("/chat/completions", {"messages": words, "max_tokens": 30, **sampled}),
            (
                "/chat/completions",
                {"messages": words, "max_tokens": 16, "logprobs": True, "top_logprobs": 2, **sampled},
            ),
            ("/chat/completions", {"messages": words, "max_tokens": 40, "temperature": 0, "stop": ["e", "1"]}),
        ]
        found += _formed(words, sampled)
    wrong = [{"prompt": "", "max_tokens": 3}, {"prompt": [1 << 30]}, {"prompt": "a", "temperature": -1}]
    return found + [("/completions", body) for body in wrong] * 6


def _formed(words: list[dict[str, Any]], sampled: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Requests whose answers keep a form."""
    schema = {"type": "json_schema", "json_schema": {"name": "order", "schema": FORM}}
    tool = {"type": "function", "function": {"name": "order", "parameters": FORM}}
    chat = {"messages": words, "max_tokens": 60, **sampled}
    return [
        ("/chat/completions", {**chat, "response_format": schema}),
        ("/chat/completions", {**chat, "structured_outputs": {"regex": "[a-f]{3,9}-[0-9]+"}}),
        ("/chat/completions", {**chat, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}),
    ]


async def _soak(target: load.Target, pid: int, minutes: float, seed: int, pace: tuple[float, float]) -> Result:
    random, result, (between, think) = np.random.default_rng(seed), Result(), pace
    cases = []
    for route, body in bodies(random):
        status, answer = await load.whole(target, route, body)
        cases.append(Case(route, body, told(answer), status))
    started = time.monotonic()
    end = started + 60 * minutes
    while time.monotonic() < end and not result.found:
        pause = min(end, time.monotonic() + between)
        await asyncio.gather(*(_client(target, cases, random, (pause, think), result) for _ in range(CLIENTS)))
        result.seen.append(await _look(target, pid, started))
    return result


async def _client(
    target: load.Target, cases: Sequence[Case], random: np.random.Generator, pace: tuple[float, float], result: Result
) -> None:
    until, think = pace
    while time.monotonic() < until and not result.found:
        await asyncio.sleep(float(random.exponential(think)) if think else 0.0)
        case = cases[int(random.integers(len(cases)))]
        leaves = case.status == 200 and random.random() < LEAVING
        try:
            if leaves:
                await _leave(target, case, int(random.integers(0, 6)), float(random.exponential(0.02)))
                result.left += 1
            elif case.status == 200 and random.random() < 0.5:
                _compare(case, await _streamed(target, case), result)
            else:
                status, answer = await load.whole(target, case.route, case.body)
                result.refused += status != 200
                _compare(case, told(answer) if status == case.status else f"status {status}", result)
        except (OSError, ValueError, IndexError, asyncio.IncompleteReadError) as error:
            result.found.append(f"{case.route} {case.body}: {type(error).__name__}: {error}")


def _compare(case: Case, answer: Any, result: Result) -> None:
    result.answered += 1
    if answer != case.answer:
        result.found.append(f"{case.route} {case.body}: {answer}, and {case.answer} when it was alone")


async def _leave(target: load.Target, case: Case, chunks: int, seconds: float) -> None:
    """Go away after some chunks, or some time."""
    asked = {**case.body, "stream": True}
    async with aclosing(load.stream(target, case.route, asked)) as answer:
        if not chunks:
            with_time = asyncio.ensure_future(anext(answer))
            await asyncio.wait([with_time], timeout=seconds)
            if not with_time.done():
                with_time.cancel()
                await asyncio.gather(with_time, return_exceptions=True)
            return
        async for _ in answer:
            chunks -= 1
            if not chunks:
                return


async def _streamed(target: load.Target, case: Case) -> Any:
    """A streamed answer, put together as the whole one is."""
    choices: dict[int, dict[str, Any]] = {}
    async with aclosing(load.stream(target, case.route, {**case.body, "stream": True})) as answer:
        async for chunk in answer:
            for part in chunk.get("choices", ()):
                _add(choices.setdefault(part["index"], _empty()), part)
    return [choices[index] for index in sorted(choices)]


def _empty() -> dict[str, Any]:
    return {"text": "", "calls": "", "logprobs": [], "finish_reason": None}


def _add(choice: dict[str, Any], part: dict[str, Any]) -> None:
    message = part.get("delta") or part.get("message") or {}
    choice["text"] += part.get("text") or message.get("content") or ""
    for call in message.get("tool_calls") or ():
        choice["calls"] += (call["function"].get("name") or "") + (call["function"].get("arguments") or "")
    choice["finish_reason"] = part["finish_reason"] or choice["finish_reason"]
    logprobs = part.get("logprobs") or {}
    choice["logprobs"] += logprobs.get("token_logprobs") or [e["logprob"] for e in logprobs.get("content") or ()]


def told(answer: Any) -> Any:
    """What must be the same each time: texts, log-probabilities, ends; or the error."""
    if "choices" not in answer:
        return answer
    choices = []
    for part in answer["choices"]:
        choices.append(_empty())
        _add(choices[-1], part)
    return choices


async def _look(target: load.Target, pid: int, started: float) -> Seen:
    """The server as soon as the last requests of those who left are gone; they have ten seconds."""
    for _ in range(200):
        with _OPEN(target.url.removesuffix("/v1") + "/metrics") as answer:
            page = answer.read().decode()
        numbers = {name: float(value) for name, value in re.findall(r"^([\w:]+) (\S+)$", page, re.MULTILINE)}
        running = numbers["fastdeploy:num_requests_running"] + numbers["fastdeploy:num_requests_waiting"]
        if not running:
            break
        await asyncio.sleep(0.05)
    status = Path(f"/proc/{pid}/status").read_text()
    rss = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) << 10
    threads = int(next(line.split()[1] for line in status.splitlines() if line.startswith("Threads")))
    files = []
    for _ in range(6):  # connections that are closing are no leak
        files.append(len(list(Path(f"/proc/{pid}/fd").iterdir())))
        await asyncio.sleep(0.05)
    return Seen(time.monotonic() - started, rss, min(files), threads, running, numbers["ernie:prefix_cache_bytes"])
