"""Alpaca rows: ``instruction``, ``input``, ``output``, with ``system`` and ``history``; and their preference variant.

The question is the instruction, and the input on the lines below it. ``history`` holds earlier turns as pairs.
"""

from __future__ import annotations

from erniecore.api import Conversation, Json, Message, Origin, Preference
from erniecore_formats import checks


def matches(row: Json) -> bool:
    """Whether a row has this shape."""
    return ("instruction" in row or ("question" in row and "chosen" in row)) and (
        "output" in row or ("chosen" in row and "rejected" in row)
    )


def parse(row: Json, origin: Origin) -> Conversation | Preference:
    """One row as a conversation, or as a preference when it has ``chosen`` and ``rejected``."""
    prompt = _prompt(row)
    if "chosen" in row or "rejected" in row:
        for name in ("chosen", "rejected"):
            if name not in row:
                raise checks.missing(row, name)
        chosen, rejected = (Message("assistant", checks.text(row[n], f"$.{n}")) for n in ("chosen", "rejected"))
        margin = checks.number(row["margin"], "$.margin") if row.get("margin") is not None else None
        return Preference(tuple(prompt), (chosen,), (rejected,), margin=margin, origin=origin)
    if "output" not in row:
        raise checks.missing(row, "output")
    return Conversation((*prompt, Message("assistant", checks.text(row["output"], "$.output"))), origin=origin)


def _prompt(row: Json) -> list[Message]:
    messages: list[Message] = []
    system = row.get("system")
    if system is not None and checks.text(system, "$.system", blank=True).strip():
        messages.append(Message("system", system))
    history = row.get("history")
    if history is not None:
        messages += _history(history)
    return [*messages, Message("user", _question(row))]


def _question(row: Json) -> str:
    name = "question" if "question" in row and "instruction" not in row else "instruction"
    if name not in row:
        raise checks.missing(row, "instruction")
    instruction = checks.text(row[name], f"$.{name}", blank=True)
    given = row.get("input")
    below = checks.text(given, "$.input", blank=True) if given is not None else ""
    if not below.strip():
        return checks.text(instruction, f"$.{name}")
    return f"{instruction}\n{below}" if instruction.strip() else below


def _history(value: object) -> list[Message]:
    if not isinstance(value, list):
        raise checks.wrong_type(value, "$.history", "a list of [question, answer] pairs")
    messages = []
    for i, pair in enumerate(value):
        where = f"$.history[{i}]"
        if not isinstance(pair, list):
            raise checks.wrong_type(pair, where, "a pair [question, answer]")
        if len(pair) != 2:
            raise checks.lengths_differ(where, f"{len(pair)} texts", "a pair [question, answer]")
        messages.append(Message("user", checks.text(pair[0], f"{where}[0]")))
        messages.append(Message("assistant", checks.text(pair[1], f"{where}[1]")))
    return messages
