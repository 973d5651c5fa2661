"""Rows that name one question and one answer: their system text, the turns before, and what such rows can say.

Shared by ``alpaca`` and ``query-response``, which differ in the names of their fields.
"""

from __future__ import annotations

from collections.abc import Sequence

from erniecore.api import Json, counted
from erniecore.api.data import Conversation, Message, Origin, Preference, Record, UnpairedPreference
from erniecore_formats import checks


def prompt(row: Json, question: str) -> list[Message]:
    """System text, earlier turns and the question."""
    messages: list[Message] = []
    system = row.get("system")
    if system is not None and checks.text(system, "$.system", allow_empty=True).strip():
        messages.append(Message("system", system))
    history = row.get("history")
    if history is not None:
        messages += _history(history)
    return [*messages, Message("user", question)]


def _history(value: object) -> list[Message]:
    if not isinstance(value, list):
        raise checks.wrong_type(value, "$.history", "a list of [question, answer] pairs")
    messages = []
    for i, pair in enumerate(value):
        where = f"$.history[{i}]"
        if not isinstance(pair, list):
            raise checks.wrong_type(pair, where, "a pair [question, answer]")
        if len(pair) != 2:
            raise checks.lengths_differ(where, counted(len(pair), "text"), "a pair [question, answer]")
        messages.append(Message("user", checks.text(pair[0], f"{where}[0]")))
        messages.append(Message("assistant", checks.text(pair[1], f"{where}[1]")))
    return messages


def preference(row: Json, before: Sequence[Message], chosen: str, rejected: str, origin: Origin) -> Preference:
    """A preference between the texts in two fields."""
    for name in (chosen, rejected):
        if name not in row:
            raise checks.missing(row, name)
    better, worse = (Message("assistant", checks.text(row[n], f"$.{n}")) for n in (chosen, rejected))
    return Preference(tuple(before), (better,), (worse,), margin=checks.margin(row), origin=origin)


def conversation(row: Json, before: Sequence[Message], field: str, origin: Origin) -> Conversation | UnpairedPreference:
    """A conversation that ends with the text in ``field``; rated where the row's ``label`` says so."""
    if field not in row:
        raise checks.missing(row, field)
    messages = (*before, Message("assistant", checks.text(row[field], f"$.{field}")))
    rating = checks.rating(row)
    return (
        Conversation(messages, origin=origin) if rating is None else UnpairedPreference(messages, rating, origin=origin)
    )


def write(record: Record, *, question: str, answer: str, chosen: str, rejected: str) -> Json:
    """The row for a record of one-text turns; raises ``RowError`` for any other.

    What only weighs a text (``learn``, reasoning) is left out; the caller compares."""
    if isinstance(record, Preference):
        checks.sayable(not record.tools, "tools")
        checks.sayable(len(record.chosen) == len(record.rejected) == 1, "answers of several messages")
        row = {**_written(record.prompt, question), chosen: _plain(record.chosen[0])}
        row[rejected] = _plain(record.rejected[0])
        return row if record.margin is None else {**row, "margin": record.margin}
    if not isinstance(record, Conversation | UnpairedPreference):
        raise checks.cannot_say(f"a {type(record).__name__.lower()}")
    checks.sayable(not record.tools, "tools")
    row = {**_written(record.messages[:-1], question), answer: _plain(record.messages[-1])}
    return {**row, "label": record.desirable} if isinstance(record, UnpairedPreference) else row


def _written(messages: Sequence[Message], question: str) -> dict[str, object]:
    row: dict[str, object] = {}
    turns = list(messages)
    if turns and turns[0].role == "system":
        row["system"] = turns.pop(0).content
    roles = [m.role for m in turns]
    checks.sayable(roles == ["user", "assistant"] * (len(turns) // 2) + ["user"], "turns of " + ", ".join(roles))
    row[question] = turns[-1].content
    if len(turns) > 1:
        row["history"] = [[turns[i].content, _plain(turns[i + 1])] for i in range(0, len(turns) - 1, 2)]
    return row


def _plain(message: Message) -> str:
    checks.sayable(not message.tool_calls, "function calls")
    checks.sayable(message.role == "assistant", f"an answer of {message.role}")
    return message.content
