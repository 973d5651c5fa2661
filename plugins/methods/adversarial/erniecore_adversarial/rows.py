"""Rows with a paragraph and whether a model wrote it, and the record that they become. numpy and paddle are not needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from erniecore.api import Json, RowError, hookimpl, shorten
from erniecore.api.data import Document, FormatPlugin, Origin, Record

MISSING, WRONG_TYPE = "ERN-D030", "ERN-D031"


@dataclass(frozen=True, slots=True)
class GeneratedDocument(Document):
    """Plain text that a model wrote, or the end of it. Other documents are natural text."""


class AdversarialFormat(FormatPlugin):
    """A paragraph with its label."""

    name = "adversarial"
    summary = "Rows with a paragraph and `generated`: whether a model wrote it"
    examples: ClassVar[Sequence[Json]] = (
        {"paragraph": "It rained all day. So we stayed in.", "generated": False},
        {"paragraph": "It rained all day. It rained all all day.", "generated": True},
    )

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        """By both field names."""
        return isinstance(row.get("paragraph"), str) and isinstance(row.get("generated"), bool)

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Record:
        """A ``GeneratedDocument``, or a ``Document``; raises ``RowError``."""
        for key, kind, expected in (("paragraph", str, "a text"), ("generated", bool, "true or false")):
            if key not in row:
                raise RowError(f"the row has no {key}", code=MISSING, where=f"$.{key}", expected=expected)
            if not isinstance(row[key], kind):
                found = shorten(row[key])
                raise RowError(
                    f"{key} is of the wrong type", code=WRONG_TYPE, where=f"$.{key}", found=found, expected=expected
                )
        if not row["paragraph"].strip():
            raise RowError("the paragraph is empty", code=MISSING, where="$.paragraph", expected="a text")
        return GeneratedDocument(row["paragraph"], origin) if row["generated"] else Document(row["paragraph"], origin)

    @hookimpl
    def ernie_write_record(self, record: Record) -> Json:
        """The way back, for documents alone."""
        if not isinstance(record, Document):
            name = type(record).__name__.lower()
            raise RowError(f"this format has no {name}", code=WRONG_TYPE, where="$", expected="a document")
        return {"paragraph": record.text, "generated": isinstance(record, GeneratedDocument)}


plugin = AdversarialFormat()
