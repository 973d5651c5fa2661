"""Whether two servers answer alike: the same conversations, greedy, to both, and what is different between the answers.

Two servers that compute in other orders or number formats may choose another token where two are nearly as likely. So a
difference is told with its place and with the margin there: by how much (in nats) each server prefers its own token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

from erniecore_serve.client import Client

#: requests that every server should refuse: name, path, body; ``model`` is filled in where it is empty
REFUSED: tuple[tuple[str, str, Any], ...] = (
    (
        "unknown model",
        "/v1/chat/completions",
        {"model": "no/such/model", "messages": [{"role": "user", "content": "a"}]},
    ),
    ("no messages", "/v1/chat/completions", {"model": "", "messages": []}),
    ("unknown role", "/v1/chat/completions", {"model": "", "messages": [{"role": "nobody", "content": "a"}]}),
    ("temperature -1", "/v1/completions", {"model": "", "prompt": "a", "max_tokens": 1, "temperature": -1}),
    ("max_tokens text", "/v1/completions", {"model": "", "prompt": "a", "max_tokens": "many"}),
    ("no JSON", "/v1/chat/completions", b'{"model": '),
    ("unknown route", "/v1/no-such-route", {"model": ""}),
)


@dataclass(frozen=True)
class Token:
    """A new token: its text, its log-probability (natural logarithm), and those of the likeliest tokens by their texts."""

    text: str
    logprob: float
    likely: Mapping[str, float]


@dataclass(frozen=True)
class Answer:
    """What a server made of a conversation.

    Attributes:
        status: of HTTP; anything but 200: ``text`` is the error.
        prompt: token ids, ``None`` where the server does not tell them. prompt_tokens, new_tokens: as it counts them.
        tokens: with log-probabilities; none where it does not give them.
    """

    status: int
    text: str
    finish: str = ""
    prompt: tuple[int, ...] | None = None
    prompt_tokens: int = 0
    new_tokens: int = 0
    calls: tuple[tuple[str, str], ...] = ()
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True)
class Difference:
    """Of the answers to one conversation; what is empty is equal.

    Attributes:
        where: file and line of the row. unequal: name -> what the two servers have.
        token: the first one that differs, counted from 0. margins: by how much each server prefers its own token there to
            the other's; ``None`` where one does not say. logprob: greatest difference of a log-probability before it.
    """

    where: str
    unequal: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    token: int | None = None
    margins: tuple[float | None, float | None] = (None, None)
    logprob: float | None = None


def answer_of(client: Client, model: str, asked: Mapping[str, Any], max_tokens: int) -> Answer:
    """Ask for a greedy completion, with log-probabilities if the server has them."""
    body = {**asked, "model": model, "max_tokens": max_tokens, "temperature": 0}
    status, found = client.ask("/v1/chat/completions", {**body, "logprobs": True, "top_logprobs": 2})
    if status in (400, 422):  # a server that is started without them
        status, found = client.ask("/v1/chat/completions", body)
    try:
        choice = found["choices"][0] if status == 200 else {}
    except (KeyError, IndexError, TypeError):
        return Answer(status, f"no answer of OpenAI's interface: {str(found)[:200]}")
    if status != 200:
        return Answer(status, str(found)[:300])
    message, usage = choice.get("message") or {}, found.get("usage") or {}
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    named = [call["function"] for call in message.get("tool_calls") or ()]
    return Answer(
        status,
        (f"<think>{reasoning}</think>" if reasoning else "") + (message.get("content") or ""),
        str(choice.get("finish_reason") or ""),
        prompt_ids(client, model, asked),
        int(usage.get("prompt_tokens") or 0),
        int(usage.get("completion_tokens") or 0),
        tuple((str(call.get("name")), str(call.get("arguments"))) for call in named),
        tuple(_tokens((choice.get("logprobs") or {}).get("content") or ())),
    )


def _tokens(content: Iterable[Mapping[str, Any]]) -> Iterable[Token]:
    for entry in content:
        likely = {str(other["token"]): float(other["logprob"]) for other in entry.get("top_logprobs") or ()}
        yield Token(str(entry["token"]), float(entry["logprob"]), likely)


def prompt_ids(client: Client, model: str, asked: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Token ids of a conversation's prompt: by ``/tokenize`` (ours, vLLM's), or ``return_token_ids`` (FastDeploy's, vLLM's)."""
    status, found = client.ask("/tokenize", {**asked, "model": model})
    if status == 200 and isinstance(found, dict) and isinstance(found.get("tokens"), list):
        return tuple(found["tokens"])
    body = {**asked, "model": model, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    status, found = client.ask("/v1/chat/completions", body)
    try:
        choice = found["choices"][0] if status == 200 else {}
        told = found.get("prompt_token_ids") or choice.get("prompt_token_ids") or choice["message"]["prompt_token_ids"]
        return tuple(map(int, told))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        return None


def compare(where: str, a: Answer, b: Answer) -> Difference:
    """What is different between two answers to one conversation."""
    unequal: dict[str, tuple[Any, Any]] = {}
    for name in ("status", "text", "finish", "prompt_tokens", "new_tokens", "calls"):
        pair = getattr(a, name), getattr(b, name)
        if pair[0] != pair[1]:
            unequal[name] = pair
    if None not in (a.prompt, b.prompt) and a.prompt != b.prompt:
        unequal["prompt"] = (a.prompt, b.prompt)
    same = _same(a.tokens, b.tokens)
    gaps = [abs(one.logprob - other.logprob) for one, other in zip(a.tokens[:same], b.tokens[:same], strict=True)]
    if not (a.tokens and b.tokens) or same == len(a.tokens) == len(b.tokens):
        return Difference(where, unequal, logprob=max(gaps, default=None))
    margins = _margin(a.tokens, b.tokens, same), _margin(b.tokens, a.tokens, same)
    return Difference(where, unequal, same, margins, max(gaps, default=None))


def _same(a: Sequence[Token], b: Sequence[Token]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip_longest(a, b))
    return next((at for at, (one, other) in pairs if not (one and other and one.text == other.text)), len(a))


def _margin(own: Sequence[Token], other: Sequence[Token], at: int) -> float | None:
    if at >= min(len(own), len(other)) or other[at].text not in own[at].likely:
        return None
    return own[at].logprob - own[at].likely[other[at].text]


def stream_equals(client: Client, model: str, asked: Mapping[str, Any], whole: Answer, max_tokens: int) -> bool:
    """Whether a streamed answer has the text of the whole one."""
    body = {**asked, "model": model, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    reasoning, content = "", ""
    for chunk in client.chunks("/v1/chat/completions", body):
        for choice in chunk.get("choices") or () if isinstance(chunk, dict) else ():
            delta = choice.get("delta") or {}
            reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
            content += delta.get("content") or ""
    return (f"<think>{reasoning}</think>" if reasoning else "") + content == whole.text


def refusals(a: tuple[Client, str], b: tuple[Client, str]) -> list[dict[str, Any]]:
    """The status of each server for requests that both should refuse."""
    told = []
    for name, path, body in REFUSED:
        status = [_status(client, path, body, model) for client, model in (a, b)]
        told.append({"request": name, "a": status[0], "b": status[1]})
    return told


def _status(client: Client, path: str, body: Any, model: str) -> int:
    filled = {**body, "model": model} if isinstance(body, dict) and body.get("model") == "" else body
    return client.ask(path, filled)[0]


def report(
    servers: Sequence[tuple[Client, str]],
    rows: Iterable[tuple[str, Mapping[str, Any]]],
    max_tokens: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Ask both servers, and say what is different.

    Args:
        servers: two, each with the name of its model there. rows: (file and line, body of a request without the model).
        progress: told of each difference as it is found.
    """
    found, tokens, streams = list[Difference](), 0, [True, True]
    for where, asked in rows:
        answers = [answer_of(client, name, asked, max_tokens) for client, name in servers]
        tokens += answers[0].new_tokens
        for at, ((client, name), answer) in enumerate(zip(servers, answers, strict=True)):
            if answer.status == 200:
                streams[at] = stream_equals(client, name, asked, answer, max_tokens) and streams[at]
        found.append(compare(where, *answers))
        if found[-1].unequal:
            progress(f"{where}: {', '.join(found[-1].unequal)}")
    gaps = [one.logprob for one in found if one.logprob is not None]
    return {
        "a": {"url": servers[0][0].url, "model": servers[0][1], "stream_is_whole": streams[0]},
        "b": {"url": servers[1][0].url, "model": servers[1][1], "stream_is_whole": streams[1]},
        "rows": len(found),
        "new_tokens": tokens,
        "equal": sum(not one.unequal for one in found),
        "largest_logprob_difference": max(gaps, default=None),
        "refusals": refusals(servers[0], servers[1]),
        "differences": [asdict(one) for one in found if one.unequal],
    }
