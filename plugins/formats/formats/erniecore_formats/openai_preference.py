"""OpenAI's preference rows: ``input`` with the messages, ``preferred_output`` and ``non_preferred_output``."""

from __future__ import annotations

from erniecore.api import Json
from erniecore.api.data import Origin, Preference
from erniecore_formats import answers, checks, media, turns

CHOSEN, REJECTED = "preferred_output", "non_preferred_output"


def matches(row: Json) -> bool:
    """Whether a row has this shape."""
    return "input" in row and CHOSEN in row and REJECTED in row


def parse(row: Json, origin: Origin) -> Preference:
    """One row as a preference; ``tools`` stand beside the messages."""
    for name in ("input", CHOSEN, REJECTED):
        if name not in row:
            raise checks.missing(row, name)
    given = row["input"]
    if not isinstance(given, dict):
        raise checks.wrong_type(given, "$.input", "an object with `messages`")
    if "messages" not in given:
        raise checks.missing(given, "messages", "$.input")
    items = checks.filled(given["messages"], "$.input.messages")
    listed = media.marked(row, turns.listed(items, "$.input.messages", images=True), origin)
    turns.check_order(listed, "$.input.messages", last="user")
    chosen, rejected = (answers.answer(row[name], f"$.{name}") for name in (CHOSEN, REJECTED))
    tools, margin = answers.tools(given, "$.input"), checks.margin(row)
    return Preference(tuple(turns.merged(listed)), chosen, rejected, margin=margin, tools=tools, origin=origin)
