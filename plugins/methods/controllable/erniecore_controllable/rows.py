"""Rows with a text (`body`) and its attributes, and the record that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from erniecore.api import Json, RowError, hookimpl, shorten
from erniecore.api.data import Document, FormatPlugin, Origin, Record

MISSING, WRONG_TYPE = "ERN-D030", "ERN-D031"
#: those that a row says; the length is counted
TEXTS = ("genre", "topic", "sentiment")


@dataclass(frozen=True, slots=True)
class Attributes:
    """What is asked of a text; empty or 0: nothing. ``words``: about how many it has."""

    genre: str = ""
    topic: str = ""
    keywords: tuple[str, ...] = ()
    sentiment: str = ""
    words: int = 0


@dataclass(frozen=True, slots=True)
class AttributedDocument(Document):
    """Plain text with attributes. Of other documents the length is known, and nothing else."""

    attributes: Attributes = field(default_factory=Attributes)


class AttributesFormat(FormatPlugin):
    """A text with what is known of it."""

    name = "attributes"
    summary = "Rows with a body of text, and its genre, topic, keywords and sentiment where they are known"
    examples: ClassVar[Sequence[Json]] = (
        {
            "body": "Snow fell on Oslo, and everybody was glad.",
            "genre": "news",
            "topic": "the weather",
            "keywords": ["snow", "Oslo town"],
            "sentiment": "positive",
        },
        {"body": "It rained all day."},
    )

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        """Whether the row has a `body`, which is a text."""
        return isinstance(row.get("body"), str)

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Record:
        """An ``AttributedDocument``; raises ``RowError``."""
        if "body" not in row:
            raise RowError("the row has no body", code=MISSING, where="$.body", expected="a text")
        if not _text(row, "body").strip():
            raise RowError("the body is empty", code=MISSING, where="$.body", expected="a text")
        genre, topic, sentiment = (_text(row, name) if name in row else "" for name in TEXTS)
        known = Attributes(genre, topic, _keywords(row), sentiment)
        return AttributedDocument(row["body"], origin, known)

    @hookimpl
    def ernie_write_record(self, record: Record) -> Json:
        """The way back; raises ``RowError`` for other records."""
        if not isinstance(record, AttributedDocument):
            name = type(record).__name__.lower()
            raise RowError(f"this format has no {name}", code=WRONG_TYPE, where="$", expected="a text with attributes")
        given = record.attributes
        row: dict[str, Any] = {"body": record.text, "genre": given.genre, "topic": given.topic}
        row |= {"keywords": list(given.keywords), "sentiment": given.sentiment}
        return {name: value for name, value in row.items() if value}


def _text(row: Mapping[str, Any], name: str) -> str:
    if not isinstance(row[name], str):
        found = shorten(row[name])
        raise RowError(f"{name} is no text", code=WRONG_TYPE, where=f"$.{name}", found=found, expected="a text")
    return str(row[name])


def _keywords(row: Mapping[str, Any]) -> tuple[str, ...]:
    found = row.get("keywords", [])
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise RowError(
            "keywords are no list of texts",
            code=WRONG_TYPE,
            where="$.keywords",
            found=shorten(found),
            expected='["…", …]',
        )
    return tuple(found)


plugin = AttributesFormat()
