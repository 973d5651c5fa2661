"""Alpaca rows: ``instruction``, ``input``, ``output``, with ``system`` and ``history``; rated, and as a preference.

The question is the instruction, and the input on the lines below it. ``history`` holds earlier turns as pairs. Dolly's
``context`` and ``response`` stand for ``input`` and ``output``.
"""

from __future__ import annotations

from erniecore.api import Json
from erniecore.api.data import Conversation, Origin, Preference, Record, UnpairedPreference
from erniecore_formats import checks, pairs


def matches(row: Json) -> bool:
    """Whether a row has this shape."""
    return ("instruction" in row or ("question" in row and "chosen" in row)) and (
        "output" in row or "response" in row or ("chosen" in row and "rejected" in row)
    )


def parse(row: Json, origin: Origin) -> Conversation | Preference | UnpairedPreference:
    """One row as a conversation, a rated one, or as a preference when it has ``chosen`` and ``rejected``."""
    checks.no_media(row)
    prompt = pairs.prompt(row, _question(row))
    if "chosen" in row or "rejected" in row:
        return pairs.preference(row, prompt, "chosen", "rejected", origin)
    answer = "response" if "response" in row and "output" not in row else "output"
    if isinstance(row.get(answer), list):
        fix = "give them as 'chosen' and 'rejected'"
        raise checks.bad_value("the answer is one text", f"$.{answer}", row[answer], "a text", fix)
    return pairs.conversation(row, prompt, answer, origin)


def write(record: Record) -> Json:
    """The row for a record; raises ``RowError`` if this format cannot represent it."""
    return pairs.write(record, question="instruction", answer="output", chosen="chosen", rejected="rejected")


def _question(row: Json) -> str:
    name = "question" if "question" in row and "instruction" not in row else "instruction"
    if name not in row:
        raise checks.missing(row, "instruction")
    instruction = checks.text(row[name], f"$.{name}", allow_empty=True)
    beside = "context" if "context" in row and "input" not in row else "input"
    given = row.get(beside)
    below = checks.text(given, f"$.{beside}", allow_empty=True) if given is not None else ""
    if not below.strip():
        return checks.text(instruction, f"$.{name}")
    return f"{instruction}\n{below}" if instruction.strip() else below
