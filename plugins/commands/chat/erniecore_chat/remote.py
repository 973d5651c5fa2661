"""A model behind an OpenAI-compatible address, for ``ernie chat --url``: in place of a ``Responder``.

Replies come as server-sent events. Closing the connection, as Ctrl-C does, is how a server learns that nobody reads on. No
redirect is followed, and a key goes to loopback addresses and over TLS alone.
"""

from __future__ import annotations

import base64
import http.client
import json
import mimetypes
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from erniecore_serve.client import server_address

from erniecore.api import EnvironmentFault, Json, UsageError
from erniecore.api.data import MARKERS, Media, Message, ToolCall
from erniecore.api.files import read_bytes

if TYPE_CHECKING:
    from erniecore_generation.sampling import Sampling

#: seconds for a connection, and for the list of models
_CONNECT = 10.0
#: what files are sent as whose names tell nothing
_KINDS = {"image": "image/png", "video": "video/mp4"}


@dataclass(frozen=True, slots=True)
class RemotePrompt:
    """A conversation as the server is given it; it counts the tokens itself."""

    messages: tuple[Json, ...]
    tools: tuple[Json, ...]
    ids: tuple[int, ...] = ()
    thinking: Literal[False] = False


@dataclass(frozen=True, slots=True)
class RemoteReply:
    """What the server has answered; ``new_tokens`` as it counts them."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    prompt_tokens: int
    new_tokens: int
    seconds: float

    def json(self) -> Json:
        """The reply for ``--json``."""
        calls = [{"name": call.name, "arguments": call.arguments} for call in self.tool_calls]
        return {
            "content": self.content, "reasoning": self.reasoning, "tool_calls": calls,
            "finish_reason": self.finish_reason, "prompt_tokens": self.prompt_tokens, "new_tokens": self.new_tokens,
            "tokens_per_s": round(self.new_tokens / self.seconds, 2) if self.seconds else 0.0,
        }  # fmt: skip


@dataclass(slots=True)
class _Reply:
    """A reply while it comes; ``show`` gets it as a model would have written it, with tags."""

    show: Callable[[str], None]
    content: str = ""
    reasoning: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    finish: str = "stop"
    usage: Json = field(default_factory=dict)

    def take(self, chunk: Json) -> None:
        """Add a chunk. Raises ``UsageError`` for one that tells of an error."""
        if "error" in chunk:
            raise UsageError("the server could not go on", found=_message_of(chunk))
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            self._text(delta.get("reasoning_content") or delta.get("reasoning") or "", delta.get("content") or "")
            for part in delta.get("tool_calls") or ():
                call = self.calls.setdefault(part.get("index", len(self.calls)), {"name": "", "arguments": ""})
                for name, text in (part.get("function") or {}).items():
                    call[name] = call.get(name, "") + (text or "")
            self.finish = choice.get("finish_reason") or self.finish

    def _text(self, reasoning: str, content: str) -> None:
        if reasoning:
            self.show(reasoning if self.reasoning else f"<think>{reasoning}")
        if content:
            self.show(f"</think>{content}" if self.reasoning and not self.content else content)
        self.reasoning += reasoning
        self.content += content

    def close(self) -> tuple[ToolCall, ...]:
        """Show the calls, which are complete now."""
        if self.calls and self.reasoning and not self.content:
            self.show("</think>")
        found = []
        for call in self.calls.values():
            self.show(
                f'<tool_call>{{"name": {json.dumps(call["name"])}, "arguments": {call["arguments"] or "{}"}}}</tool_call>'
            )
            found.append(ToolCall(call["name"], call["arguments"]))
        return tuple(found)


class RemoteResponder:
    """Asks the server at ``url``.

    Args:
        url: with or without ``/v1``. name: of the model there; empty: the only one. key: of the API, or empty.
        given: options of sampling that the user has chosen; others are the server's. thinking: whether replies begin with
            reasoning; None: as the server has it.

    Raises:
        UsageError: an address that is none, a key that others could read, no such model. EnvironmentFault: nobody is there.
    """

    def __init__(
        self, url: str, *, name: str = "", key: str = "", given: set[str], thinking: bool | None = None
    ) -> None:
        parts = server_address(url, key)
        path = parts.path.rstrip("/")
        self._root = path if path.endswith("/v1") else f"{path}/v1"
        self._parts, self._key, self._given, self._thinking = parts, key, given, thinking
        self.model = SimpleNamespace(architecture={})  # what the context has room for is the server's business
        self.name = self._named(name)

    def _named(self, name: str) -> str:
        with self._asked("GET", "/models") as response:
            names = [model["id"] for model in json.loads(response.read())["data"]]
        if name and name not in names:
            raise UsageError("the server has no such model", where="--model", found=name, expected=", ".join(names))
        if not name and len(names) != 1:
            raise UsageError("the server has several models", fix="--model NAME", expected=", ".join(names))
        return name or str(names[0])

    def encode(self, messages: Sequence[Message], tools: Sequence[Json] = ()) -> RemotePrompt:
        """The conversation as JSON. Raises ``UsageError`` for an image or video that cannot be read."""
        found, results = [], 0
        for message in messages:
            found.append(_plain(message, results))
            results = results + 1 if message.role == "tool" else 0
        return RemotePrompt(tuple(found), tuple(tools))

    def complete(
        self,
        prompts: Sequence[RemotePrompt],
        *,
        sampling: Sampling,
        max_new_tokens: int | None = None,
        streams: Sequence[int] = (0,),
        on_text: Callable[[int, str], None],
    ) -> list[RemoteReply]:
        """The reply to one conversation.

        Raises:
            UsageError: the server refuses it. EnvironmentFault: it is not there, or stops in the middle.
        """
        [prompt], started = prompts, time.perf_counter()
        body: Json = {
            "model": self.name, "messages": list(prompt.messages), "stream": True, "stream_options": {"include_usage": True},
            **self._options(sampling, max_new_tokens, streams[0]),
        }  # fmt: skip
        if prompt.tools:
            body = {**body, "tools": list(prompt.tools)}
        reply = _Reply(lambda text: on_text(0, text))
        with self._asked("POST", "/chat/completions", body) as response:
            for chunk in _events(response):
                reply.take(chunk)
        calls = reply.close()
        return [
            RemoteReply(
                reply.content, reply.reasoning, calls, reply.finish, int(reply.usage.get("prompt_tokens", 0)),
                int(reply.usage.get("completion_tokens", 0)), time.perf_counter() - started,
            )
        ]  # fmt: skip

    def _options(self, sampling: Sampling, max_new_tokens: int | None, stream: int) -> dict[str, Any]:
        found: dict[str, Any] = {name: getattr(sampling, name) for name in sorted(self._given)}
        if "seed" in found:
            found["seed"] += stream  # another reply for /retry
        if max_new_tokens is not None:
            found["max_tokens"] = max_new_tokens
        if self._thinking is not None:
            found["chat_template_kwargs"] = {"enable_thinking": self._thinking}
        return found

    @contextmanager
    def _asked(self, method: str, route: str, body: Json | None = None) -> Iterator[http.client.HTTPResponse]:
        """The response, whose connection lives as long as the block."""
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=_CONNECT)
        where = f"{self._parts.scheme}://{self._parts.netloc}{self._root}{route}"
        headers = {
            "content-type": "application/json",
            **({"authorization": f"Bearer {self._key}"} if self._key else {}),
        }
        try:
            connection.connect()
            if body is not None:
                connection.sock.settimeout(None)  # a long prompt, or a long queue
            connection.request(method, self._root + route, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise _refusal(response, where)
            yield response
        except (OSError, http.client.HTTPException) as error:
            found = f"{type(error).__name__}: {error}"
            raise EnvironmentFault("the server is not reachable", where=where, found=found) from error
        finally:
            connection.close()


def _refusal(response: http.client.HTTPResponse, where: str) -> UsageError:
    text = response.read(1 << 16)
    try:
        found = _message_of(json.loads(text))
    except ValueError:
        found = text.decode(errors="replace")[:200]
    fix = {401: "set $ERNIE_API_KEY, or --key-file FILE", 429: "try again in a moment"}.get(response.status, "")
    return UsageError(f"the server refuses this ({response.status})", where=where, found=found, fix=fix)


def _message_of(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _events(response: http.client.HTTPResponse) -> Iterator[Json]:
    """The data of server-sent events. Raises ``EnvironmentFault`` where the end is missing."""
    for line in iter(response.readline, b""):
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        if line.startswith(b"data:") and data:
            yield json.loads(data)
    raise EnvironmentFault("the server has stopped in the middle of a reply")


def _plain(message: Message, result: int) -> Json:
    """A message of OpenAI's interface; ``result`` counts those of tools. Reasoning of earlier replies is not part of it."""
    if message.media:
        return {"role": message.role, "content": _parts(message)}
    calls = [
        {"id": f"call-{n}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for n, call in enumerate(message.tool_calls)
    ]
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if calls:
        row["tool_calls"] = calls
    if message.role == "tool":
        row["tool_call_id"] = f"call-{result}"
    return row


def _parts(message: Message) -> list[Json]:
    """Text, images and videos, each where the text has its marker."""
    found: list[Json] = []
    left = iter(message.media)
    markers = {MARKERS[media.kind] for media in message.media}
    for text in re.split("(" + "|".join(sorted(markers)) + ")", message.content):
        if text in markers:
            media = next(left)
            part = f"{media.kind}_url"
            found.append({"type": part, part: {"url": _data_url(media)}})
        elif text:
            found.append({"type": "text", "text": text})
    return found


def _data_url(media: Media) -> str:
    """The file itself: a server opens no paths of others. Raises ``UsageError`` for one that cannot be read."""
    if media.frames:
        fix = "send a file, or ask a model in this process (--model)"
        raise UsageError("a list of frames cannot be sent to a server", where=media.where, fix=fix)
    if media.source.startswith("data:"):
        return media.source
    path = Path(media.base, media.source)
    kind = mimetypes.guess_type(path.name)[0] or _KINDS[media.kind]
    try:
        data = base64.b64encode(read_bytes(path)).decode()
    except OSError as error:
        raise UsageError(f"cannot read the {media.kind}", where=str(path), found=error.strerror or "") from error
    return f"data:{kind};base64,{data}"
