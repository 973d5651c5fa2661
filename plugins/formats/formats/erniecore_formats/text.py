"""Plain text: one field of a row is a document; every other field is left alone.

Text files come as rows with the field ``text``, one per line, paragraph or file (``formats.text.document``).
"""

from __future__ import annotations

from erniecore.api import Json
from erniecore.api.data import Document, Origin, Record
from erniecore_formats import alpaca, checks, erniekit, messages, preference, query_response

_OTHERS = (alpaca, erniekit, messages, preference, query_response)


def matches(row: Json) -> bool:
    """Whether a row has a text, and is no row of another format that carries one beside (as Alpaca's own file does)."""
    if "message_id" in row and "role" in row:  # a message of a tree
        return False
    return isinstance(row.get("text"), str) and not any(m.matches(row) for m in _OTHERS)


def parse(row: Json, field: str, origin: Origin) -> Document:
    """One row as a document; a list of texts is joined line by line. Raises ``RowError`` for a missing or blank text."""
    if field not in row:
        raise checks.missing(row, field)
    where, value = f"$.{field}", row[field]
    if isinstance(value, list):
        return Document(
            "\n".join(checks.text(t, f"{where}[{i}]") for i, t in enumerate(checks.filled(value, where))), origin
        )
    return Document(checks.text(value, where), origin)


def write(record: Record, field: str) -> Json:
    """The row for a document; raises ``RowError`` for any other record."""
    if not isinstance(record, Document):
        raise checks.cannot_say(f"a {type(record).__name__.lower()}")
    return {field: record.text}
