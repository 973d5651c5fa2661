"""Conversations of rows as bodies of ``POST /v1/chat/completions``, as a client would send them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from erniecore.api import Json, UsageError
from erniecore.api.data import MARKERS, Media, Message


def as_request(messages: Sequence[Message], tools: Sequence[Json], thinking: bool | None) -> dict[str, Any]:
    """``messages``, and where they are needed ``tools`` and ``chat_template_kwargs``. Images are data URLs or absolute paths.

    Raises:
        UsageError: a video that is given as images, which requests have no form for.
    """
    asked: dict[str, Any] = {"messages": [_message(message) for message in messages]}
    if tools:
        asked["tools"] = [_tool(tool) for tool in tools]
    if thinking is not None:
        asked["chat_template_kwargs"] = {"enable_thinking": thinking}
    return asked


def media_roots(messages: Sequence[Message]) -> list[str]:
    """Directories that the images of a conversation lie in."""
    return sorted({os.path.abspath(media.base or ".") for message in messages for media in message.media})


def _message(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.reasoning:
        made["reasoning_content"] = message.reasoning
    if message.tool_calls:
        calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
        made["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return made


def _content(message: Message) -> str | list[dict[str, Any]]:
    """Text, or parts where there are images."""
    if not message.media:
        return message.content
    left, parts = list(message.media), list[dict[str, Any]]()
    markers = {MARKERS[media.kind] for media in message.media}
    for text in re.split("(" + "|".join(sorted(markers)) + ")", message.content):
        if text in markers:
            media = left.pop(0)
            name = f"{media.kind}_url"
            parts.append({"type": name, name: {"url": _url(media)}})
        elif text:
            parts.append({"type": "text", "text": text})
    return parts


def _url(media: Media) -> str:
    if media.frames:
        raise UsageError("a video that is given as images has no form in requests", where=media.where)
    is_data = media.source.startswith("data:")
    return media.source if is_data else os.path.join(os.path.abspath(media.base or "."), media.source)


def _tool(tool: Json) -> Json:
    """As clients send it: rows may have the function alone."""
    return tool if "function" in tool else {"type": "function", "function": dict(tool)}
