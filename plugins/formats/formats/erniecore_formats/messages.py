"""Chat rows: OpenAI's ``messages`` (role, content) and ShareGPT's ``conversations`` (from, value), tools included. The names
of the list and of what is in it go together in any way.

The same row becomes a preference with ``chosen`` and ``rejected``, or a rated conversation when its ``label`` is true
or false. Single messages are read in ``turns.py``. Texts are not stripped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from erniecore.api import Json
from erniecore.api.data import Conversation, Message, Origin, Preference, Record, UnpairedPreference
from erniecore_formats import answers, checks, media, turns

#: an ending that is worse than that of the messages: the answer, or the whole conversation with it
_REJECTED = ("rejected_response", "rejected_messages")
_LISTS = ("messages", "conversations", "conversation")


def matches(row: Json) -> bool:
    """Whether a row has this shape; one with ``prompt`` and ``chosen`` is a preference that also has messages."""
    return isinstance(row.get(_list_in(row)), list) and not ("prompt" in row and "chosen" in row)


def _list_in(row: Json) -> str:
    return next((name for name in _LISTS if name in row), "messages")


def parse(row: Json, origin: Origin) -> Conversation | Preference | UnpairedPreference:
    """One row as a conversation, a preference or a rated conversation."""
    name = _list_in(row)
    if name not in row:
        raise checks.missing(row, "messages")
    checks.no_media(row, but=("images", "videos"))
    if row.get("objects"):
        fix = "write the names and boxes into the texts, in place of <ref-object> and <bbox>"
        raise checks.bad_value(
            "boxes beside the messages are not read", "$.objects", row["objects"], "texts alone", fix
        )
    items = checks.filled(row[name], f"$.{name}", "a list of messages")
    listed = media.marked(row, turns.listed(items, f"$.{name}", images=True), origin)
    system, tools, pair = turns.system_beside(row, listed[0]), answers.tools(row), "chosen" in row or "rejected" in row
    turns.check_order(listed, f"$.{name}", last="user" if pair else "assistant", before="system" if system else "")
    messages = system + turns.merged(listed)
    rated = "kto_tag" if "kto_tag" in row and "label" not in row else "label"
    label = row.get(rated)
    if pair:
        return _preference(row, messages, tools, origin)
    if any(name in row for name in _REJECTED):
        return _other_ending(row, messages, tools, origin)
    if isinstance(label, bool):
        return UnpairedPreference(tuple(messages), label, tools=tools, origin=origin)
    if label is not None:
        messages = _labeled(messages, label, f"$.{rated}")
    return Conversation(tuple(messages), tools=tools, origin=origin)


def _labeled(messages: Sequence[Message], label: object, where: str) -> list[Message]:
    if not isinstance(label, list):
        fix = "write true or false to rate the conversation, or a list with 0 or 1 for each answer"
        raise checks.wrong_type(label, where, "true, false or a list of 0 and 1", fix)
    count = sum(m.role == "assistant" for m in messages)
    flags = iter(checks.flags(label, where, count, "assistant turns"))
    return [replace(m, learn=next(flags)) if m.role == "assistant" else m for m in messages]


def _preference(row: Json, prompt: list[Message], tools: tuple[Json, ...], origin: Origin) -> Preference:
    for side in ("chosen", "rejected"):
        if side not in row:
            raise checks.missing(row, side)
    chosen, rejected = (answers.answer(row[side], f"$.{side}") for side in ("chosen", "rejected"))
    return Preference(tuple(prompt), chosen, rejected, margin=checks.margin(row), tools=tools, origin=origin)


def _other_ending(row: Json, messages: list[Message], tools: tuple[Json, ...], origin: Origin) -> Preference:
    name = next(name for name in _REJECTED if name in row)
    cut = 1 + max(i for i, m in enumerate(messages) if m.role == "user")
    listed = answers.messages_in(row[name], f"$.{name}", "an answer or a list of messages")
    if name == "rejected_messages":
        if [(m.role, m.content) for m in listed[:cut]] != [(m.role, m.content) for m in messages[:cut]]:
            expected = "the same messages up to the last answer"
            raise checks.bad_value("the two conversations do not begin alike", f"$.{name}", listed[0].content, expected)
        listed = listed[cut:]
    rejected = answers.checked(checks.filled(listed, f"$.{name}", "an answer"), f"$.{name}")
    margin = checks.margin(row)
    return Preference(tuple(messages[:cut]), tuple(messages[cut:]), rejected, margin=margin, tools=tools, origin=origin)


def write(record: Record) -> Json:
    """The row for a record, as OpenAI has it; raises ``RowError`` for documents."""
    if isinstance(record, Preference):
        row: dict[str, object] = {"messages": answers.written(record.prompt), **media.sources(record.prompt)}
        row |= {"chosen": answers.written(record.chosen), "rejected": answers.written(record.rejected)}
        return row | answers.beside(record.tools, record.margin)
    if not isinstance(record, Conversation | UnpairedPreference):
        raise checks.cannot_say(f"a {type(record).__name__.lower()}")
    row = {"messages": answers.written(record.messages), **media.sources(record.messages)}
    if isinstance(record, UnpairedPreference):
        row["label"] = record.desirable
    return row | answers.beside(record.tools)
