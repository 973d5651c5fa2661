"""Sentinels: unguessable placeholders for users' texts in a rendering, and the texts put back. Only strings; no jinja.

A sentinel that went through ``tojson`` is told apart from a bare one, because its text is written with JSON escapes.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from erniecore.api import Json
from erniecore.api.data import Message, ToolCall
from erniecore.api.files import parse_json

#: Texts of tools and calls that may stay: they cannot hold a special token, and templates compare them.
_PLAIN = re.compile(r"[A-Za-z0-9_.$/ -]*\Z")


class RenderedSpan(NamedTuple):
    """A span of a rendering; ``start`` and ``end`` count characters of the text with sentinels."""

    text: str
    trusted: bool
    message: int
    start: int
    end: int


class Sentinels:
    """The sentinels of one template object; ``texts`` lists collect (text, message index) by number.

    A sentinel is ``prefix``, the number and R; in the output of ``tojson`` J stands for R."""

    def __init__(self) -> None:
        token = secrets.token_hex(12)
        self.prefix = f"M{token}n"
        self._any = re.compile(f"{self.prefix}([0-9]+)([RJ])")

    def replace(self, text: str, message: int, texts: list[tuple[str, int]]) -> str:
        """A sentinel for ``text``; the empty text stays."""
        if not text:
            return ""
        texts.append((text, message))
        return f"{self.prefix}{len(texts) - 1}R"

    def tree(self, value: Any, message: int, texts: list[tuple[str, int]]) -> Any:
        """JSON value with sentinels for every text and key that is not a plain word."""
        if isinstance(value, str):
            return value if _PLAIN.match(value) else self.replace(value, message, texts)
        if isinstance(value, dict):
            return {self.tree(k, message, texts): self.tree(v, message, texts) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.tree(v, message, texts) for v in value]
        return value

    def messages(
        self, messages: Sequence[Message], texts: list[tuple[str, int]], *, keep_edges: bool = False
    ) -> list[dict[str, Any]]:
        """Messages as templates see them, with sentinels. ``keep_edges``: whitespace at both ends of a text stays
        outside of its sentinel, so that a template may strip it."""
        out = []
        for i, message in enumerate(messages):

            def hide(text: str, i: int = i) -> str:
                core = text.strip() if keep_edges else text
                return text.replace(core, self.replace(core, i, texts), 1) if core else text

            calls = [_call(self.tree(c.name, i, texts), self.tree(_arguments(c), i, texts)) for c in message.tool_calls]
            out.append(_message(message.role, hide(message.content), hide(message.reasoning), calls))
        return out

    def split(self, rendered: str, texts: Sequence[tuple[str, int]]) -> list[RenderedSpan]:
        """The spans of a rendering with the texts put back."""
        out, position = [], 0
        for match in self._any.finditer(rendered):
            if match.start() > position:
                out.append(RenderedSpan(rendered[position : match.start()], True, -1, position, match.start()))
            text, message = texts[int(match[1])]
            if match[2] == "J":
                text = json.dumps(text, ensure_ascii=False)[1:-1]
            out.append(RenderedSpan(text, False, message, match.start(), match.end()))
            position = match.end()
        if position < len(rendered):
            out.append(RenderedSpan(rendered[position:], True, -1, position, len(rendered)))
        return out


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates see them."""
    return [
        _message(m.role, m.content, m.reasoning, [_call(c.name, _arguments(c)) for c in m.tool_calls]) for m in messages
    ]


def _message(role: str, content: str, reasoning: str, calls: Sequence[Json]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def _call(name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(call: ToolCall) -> Any:
    """The arguments as an object where their text is one, as servers hand them to templates."""
    try:
        value = parse_json(call.arguments)
    except ValueError:
        return call.arguments
    return value if isinstance(value, dict) else call.arguments
