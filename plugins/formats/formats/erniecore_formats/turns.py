"""One message of a chat row, whichever of the usual spellings it has, and the order that messages may come in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from erniecore.api import Json, RowError, nearest, shorten
from erniecore.api.data import MARKERS, Media, Message, ToolCall
from erniecore.api.files import parse_json
from erniecore_formats import checks, media

#: role names in data files -> ours; ``function_call`` is an assistant message that is a call
ROLES: Mapping[str, str] = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "function_call": "function_call",
    "tool_call": "function_call",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "tool_response": "tool",
    "developer": "system",
}
#: what may follow what; the first message follows ``""``
_FOLLOWS = {
    "": ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user", "tool"),  # a call may be part of a plain answer
    "call": ("tool",),
    "tool": ("tool", "assistant"),
}
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>\s*(.*)\Z", re.DOTALL)


#: roles whose messages need a text and nothing else
_PLAIN = {name: role for name, role in ROLES.items() if role in ("system", "user", "assistant")}


def listed(items: Sequence[object], where: str, *, images: bool = False) -> list[Message]:
    """All messages of a list; raises ``RowError`` with the path of what is wrong. ``images``: questions may have some."""
    return [_plain(item) or message(item, f"{where}[{i}]", images=images) for i, item in enumerate(items)]


def _plain(item: object) -> Message | None:
    """The usual message, a role and a text: the same as ``message`` makes of it, in a fraction of the time."""
    if type(item) is not dict or len(item) != 2:
        return None
    if "role" in item:
        role, text = item["role"], item.get("content")
    else:
        role, text = item.get("from"), item.get("value")
    if type(role) is not str or type(text) is not str or not text or text.isspace():
        return None
    known = _PLAIN.get(role)
    if known is None or (known == "assistant" and ("<think>" in text or "</think>" in text)):
        return None
    return Message(known, text)  # type: ignore[arg-type]


def message(item: object, where: str, *, images: bool = False) -> Message:
    """One message; ``images``: parts of questions may be some. Raises ``RowError`` with the path of what is wrong."""
    if not isinstance(item, dict):
        raise checks.wrong_type(item, where, "a message object")
    role_key = "from" if "from" in item and "role" not in item else "role"
    text_key = "value" if "content" not in item and ("value" in item or role_key == "from") else "content"
    if role_key not in item:
        raise _two_in_one(item, where) if "input" in item and "output" in item else checks.missing(item, "role", where)
    role = ROLES.get(item[role_key]) if isinstance(item[role_key], str) else None
    if role is None:
        raise _unknown_role(item[role_key], f"{where}.{role_key}")
    calls = item.get("tool_calls")
    if text_key not in item and not calls:
        raise checks.missing(item, text_key, where)
    seen: list[Media] | None = [] if images and role == "user" else None
    content = _content(item.get(text_key), f"{where}.{text_key}", role, bool(calls), seen)
    if role == "assistant":
        return _assistant(item, content, where, text_key)
    if role == "function_call":
        return Message("assistant", "", tool_calls=_called(content, f"{where}.{text_key}"), learn=_learn(item, where))
    if role != "tool":
        checks.text(content, f"{where}.{text_key}")
    return Message(role, content, media=tuple(seen or ()))  # type: ignore[arg-type]


def _two_in_one(item: Json, where: str) -> RowError:
    fix = (
        "write two messages: 'input' as the content of a user, 'output' as that of the assistant ('system' before both)"
    )
    return checks.bad_value("a question and its answer are two messages", where, item, "a message with a role", fix)


def _unknown_role(found: object, where: str) -> RowError:
    close = nearest(found.lower(), ROLES) if isinstance(found, str) else None
    return RowError(
        "the role is unknown",
        code=checks.UNKNOWN_ROLE,
        where=where,
        found=shorten(found),
        expected="one of " + ", ".join(ROLES),
        fix=f"did you mean {close!r}?" if close else "map it to one of these roles",
    )


def _content(value: Any, where: str, role: str, calls: bool, seen: list[Media] | None) -> str:
    """Text with a marker for each image and video, which are added to ``seen``; ``None``: there may be none."""
    if isinstance(value, str):
        return value
    if value is None and (calls or role == "tool"):
        return ""
    if isinstance(value, list) and value and all(isinstance(p, dict) and "type" in p for p in value):
        content = "".join(_part(p, f"{where}[{i}]", seen) for i, p in enumerate(value))
        kinds = [one.kind for one in seen or ()]
        if list(media.kinds_in(content, sorted(set(kinds)))) != kinds:
            expected = "parts of text without the markers <image> and <video>, which stand for media"
            raise checks.bad_value("a text beside image parts has a marker", where, content, expected)
        return content
    if role == "tool" and isinstance(value, list | dict | int | float | bool):
        return json.dumps(value, ensure_ascii=False)
    raise checks.wrong_type(value, where, "a text")


def _part(part: dict[str, Any], where: str, seen: list[Media] | None) -> str:
    if seen is not None and part["type"] in media.PARTS:
        seen.append(media.of_part(part, where))
        return MARKERS[seen[-1].kind]
    if part["type"] != "text":
        raise checks.media(f"{where}.type", part["type"])
    name = "value" if "value" in part and "text" not in part else "text"
    return checks.text(part.get(name), f"{where}.{name}", allow_empty=True)


def _assistant(item: dict[str, Any], content: str, where: str, text_key: str) -> Message:
    reasoning_key = "reasoning" if "reasoning" in item and "reasoning_content" not in item else "reasoning_content"
    given = item.get(reasoning_key)
    reasoning = checks.text(given, f"{where}.{reasoning_key}", allow_empty=True).strip() if given is not None else ""
    if "<think>" in content or "</think>" in content:
        thought = _THOUGHT.match(content)
        if not thought or "<think>" in thought[2] or "</think>" in thought[2]:
            raise checks.bad_value(
                "thinking is one <think>…</think> before the answer", f"{where}.{text_key}", content, "one closed block"
            )
        if reasoning:
            raise checks.bad_value(
                "there are two reasonings", f"{where}.{reasoning_key}", given, "a <think> block or this field, not both"
            )
        reasoning, content = thought[1].strip(), thought[2]
    calls = _calls(item.get("tool_calls"), f"{where}.tool_calls")
    if not calls and not reasoning:
        checks.text(content, f"{where}.{text_key}")
    return Message("assistant", content, reasoning=reasoning, tool_calls=calls, learn=_learn(item, where))


def _learn(item: Mapping[str, Any], where: str) -> bool:
    """``label`` or ``weight`` of one message; learned unless it says 0."""
    for name in ("label", "weight"):
        if item.get(name) is not None:
            return checks.flag(item[name], f"{where}.{name}")
    return True


def _called(text: str, where: str) -> tuple[ToolCall, ...]:
    """ShareGPT's ``function_call``: JSON text of one call or of a list of calls."""
    try:
        value = parse_json(text)
    except ValueError as e:
        raise checks.bad_value(f"a function call is JSON: {e}", where, text, '{"name": …, "arguments": {…}}') from e
    return _calls(value if isinstance(value, list) else [value], where)


def _calls(value: object, where: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise checks.wrong_type(value, where, "a list of calls")
    return tuple(_call(item, f"{where}[{i}]") for i, item in enumerate(value))


def _call(item: object, where: str) -> ToolCall:
    body = item.get("function", item) if isinstance(item, dict) else item
    if not isinstance(body, dict):
        raise checks.wrong_type(body, where, "a call with `name` and `arguments`")
    name = body.get("name")
    if not isinstance(name, str) or not name:
        raise checks.missing(body, "name", where)
    arguments = body.get("arguments", {})
    if isinstance(arguments, str):
        try:
            parse_json(arguments)
        except ValueError as e:
            raise checks.bad_value(
                f"the arguments are not JSON: {e}", f"{where}.arguments", arguments, "an object"
            ) from e
        return ToolCall(name, arguments)
    if not isinstance(arguments, dict):
        raise checks.wrong_type(arguments, f"{where}.arguments", "an object")
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def system_beside(row: Json, first: Message) -> list[Message]:
    """The system text that stands beside the list of messages."""
    value = row.get("system")
    if value is None or not checks.text(value, "$.system", allow_empty=True).strip():
        return []
    if first.role == "system":
        raise checks.bad_value("there are two system texts", "$.system", value, "one system text")
    return [Message("system", value)]


def merged(messages: Sequence[Message]) -> list[Message]:
    """Join an answer's text and a call that follows it in a message of its own: both are one turn."""
    out: list[Message] = []
    for item in messages:
        last = out[-1] if out else None
        if last and last.role == "assistant" and _only_calls(item):
            out[-1] = replace(last, tool_calls=last.tool_calls + item.tool_calls, learn=last.learn and item.learn)
        else:
            out.append(item)
    return out


def _only_calls(item: Message) -> bool:
    return bool(item.tool_calls) and not item.content and not item.reasoning


def _reordered(messages: Sequence[Message], before: str) -> str:
    if before:
        return "reorder or join the messages"
    if len(messages) == 1:
        return "a text without a question is a document: write it as 'text'"
    return "remove what stands before the first question"


def check_order(messages: Sequence[Message], where: str, *, last: str, before: str = "") -> None:
    """System first, then user and assistant in turn, tool results behind calls; the end belongs to ``last``.

    Args:
        messages: as in the row, before ``merged``, so that the path in an error is right.
        before: ``"system"`` when a system text stands outside of the list.
    """
    for i, item in enumerate(messages):
        if item.role not in _FOLLOWS[before] and not (before == "assistant" and _only_calls(item)):
            behind = {"call": "a tool call", "": "the start"}.get(before, f"a message of role {before}")
            raise RowError(
                f"a message of role {item.role} cannot follow {behind}"
                if before
                else f"the first message has role {item.role}",
                code=checks.ROLE_ORDER,
                where=f"{where}[{i}]",
                found=item.role,
                expected=" or ".join(_FOLLOWS[before]),
                fix=_reordered(messages, before),
            )
        before = "call" if item.tool_calls else item.role
    if messages[-1].role == last or (last == "user" and messages[-1].role == "tool"):
        return
    raise RowError(
        f"the last message must be of {last}",
        code=checks.ROLE_ORDER,
        where=f"{where}[{len(messages) - 1}]",
        found=messages[-1].role,
        expected=last,
        fix="remove what follows the last answer"
        if last == "assistant"
        else "put the answers into chosen and rejected",
    )
