"""Rows with ``query`` (or ``prompt``) and ``response``, with ``system`` and ``history``; also rated and as a preference.

``rejected_response`` makes a preference of a row, ``label: true`` or ``false`` a rated conversation. Texts only.
"""

from __future__ import annotations

from erniecore.api import Json
from erniecore.api.data import Conversation, Origin, Preference, Record, UnpairedPreference
from erniecore_formats import checks, pairs


def matches(row: Json) -> bool:
    """Whether a row has this shape."""
    return ("query" in row or ("prompt" in row and not {"chosen", "completion"} & row.keys())) and "response" in row


def parse(row: Json, origin: Origin) -> Conversation | Preference | UnpairedPreference:
    """One row as a conversation, a rated one, or a preference."""
    checks.no_media(row)
    question = "prompt" if "prompt" in row and "query" not in row else "query"
    for name in (question, "response"):
        if name not in row:
            raise checks.missing(row, name)
    if isinstance(row[question], list):
        fix = f"rename {question!r} to 'prompt' and 'response' to 'completion'" if question == "query" else ""
        fix = fix or "rename 'response' to 'completion'"
        raise checks.wrong_type(row[question], f"$.{question}", "a text", fix)
    prompt = pairs.prompt(row, checks.text(row[question], f"$.{question}"))
    if row.get("rejected_response") is not None:
        return pairs.preference(row, prompt, "response", "rejected_response", origin)
    return pairs.conversation(row, prompt, "response", origin)


def write(record: Record) -> Json:
    """The row for a record; raises ``RowError`` if this format cannot represent it."""
    return pairs.write(record, question="query", answer="response", chosen="response", rejected="rejected_response")
