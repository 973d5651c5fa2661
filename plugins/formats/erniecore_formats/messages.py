"""Chat rows: OpenAI's ``messages`` (role, content) and ShareGPT's ``conversations`` (from, value), tools included.

The same row becomes a preference with ``chosen`` and ``rejected``, or a rated conversation when its ``label`` is true
or false. Single messages are read in ``turns.py``. Texts are not stripped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from erniecore.api import Conversation, Json, Message, Origin, Preference, Rated, RowError
from erniecore_formats import checks, turns

_MEDIA = ("images", "image", "videos", "video", "audios")


def matches(row: Json) -> bool:
    """Whether a row has this shape."""
    return isinstance(row.get("messages", row.get("conversations")), list)


def parse(row: Json, origin: Origin) -> Conversation | Preference | Rated:
    """One row as a conversation, a preference or a rated conversation."""
    name = "messages" if "messages" in row else "conversations"
    if name not in row:
        raise checks.missing(row, "messages")
    for media in _MEDIA:
        if row.get(media):
            raise checks.bad_value(
                "the row has media, this format reads texts", f"$.{media}", row[media], "a text-only row"
            )
    items = checks.filled(row[name], f"$.{name}", "a list of messages")
    listed = [turns.message(item, f"$.{name}[{i}]") for i, item in enumerate(items)]
    system, tools, pair = _system(row, listed[0]), _tools(row), "chosen" in row or "rejected" in row
    turns.check_order(listed, f"$.{name}", last="user" if pair else "assistant", before="system" if system else "")
    messages = system + turns.merged(listed)
    if pair:
        return _preference(row, messages, tools, origin)
    label = row.get("label", row.get("kto_tag"))
    if isinstance(label, bool):
        return Rated(tuple(messages), label, tools=tools, origin=origin)
    if label is not None:
        messages = _labelled(messages, label)
    return Conversation(tuple(messages), tools=tools, origin=origin)


def _system(row: Json, first: Message) -> list[Message]:
    """The system text that stands beside the list of messages."""
    value = row.get("system")
    if value is None or not checks.text(value, "$.system", blank=True).strip():
        return []
    if first.role == "system":
        raise checks.bad_value("there are two system texts", "$.system", value, "one system text")
    return [Message("system", value)]


def _labelled(messages: Sequence[Message], label: object) -> list[Message]:
    count = sum(m.role == "assistant" for m in messages)
    flags = iter(checks.flags(label, "$.label", count, "assistant turns"))
    return [replace(m, learn=next(flags)) if m.role == "assistant" else m for m in messages]


def _preference(row: Json, prompt: list[Message], tools: tuple[Json, ...], origin: Origin) -> Preference:
    for side in ("chosen", "rejected"):
        if side not in row:
            raise checks.missing(row, side)
    chosen, rejected = (_answer(row[side], f"$.{side}") for side in ("chosen", "rejected"))
    margin = checks.number(row["margin"], "$.margin") if row.get("margin") is not None else None
    return Preference(tuple(prompt), chosen, rejected, margin=margin, tools=tools, origin=origin)


def _answer(value: object, where: str) -> tuple[Message, ...]:
    """A text, a message, or messages."""
    if isinstance(value, str):
        return (turns.message({"role": "assistant", "content": value}, where),)
    if isinstance(value, dict):
        messages = [turns.message(value, where)]
    else:
        items = checks.filled(value, where, "a text, a message or a list of messages")
        messages = turns.merged([turns.message(item, f"{where}[{i}]") for i, item in enumerate(items)])
    if messages[0].role != "assistant" or messages[-1].role != "assistant":
        raise RowError(
            "an answer begins and ends with the assistant",
            code=checks.ROLE_ORDER,
            where=where,
            found=" → ".join(m.role for m in messages),
            expected="assistant",
        )
    return tuple(messages)


def _tools(row: Json) -> tuple[Json, ...]:
    """The offered tools: a list, or one as JSON text; each an object with a name."""
    name = "functions" if "functions" in row and "tools" not in row else "tools"
    value, where = row.get(name), f"$.{name}"
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as e:
            raise checks.bad_value(f"the text is not JSON: {e}", where, value, "a list of tools") from e
    if not isinstance(value, list):
        raise checks.wrong_type(value, where, "a list of tools")
    for i, tool in enumerate(value):
        body = tool.get("function", tool) if isinstance(tool, dict) else tool
        if not isinstance(body, dict) or not isinstance(body.get("name"), str):
            raise checks.bad_value("a tool needs a name", f"{where}[{i}]", tool, "an object with `name`")
    return tuple(value)
