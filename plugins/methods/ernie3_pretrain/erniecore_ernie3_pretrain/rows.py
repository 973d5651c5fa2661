"""Rows with knowledge: a passage with the phrases and entities in it, or a passage that says what a triple of a knowledge graph
says.

    {"passage": "Ada Lovelace wrote the first program.", "spans": ["Ada Lovelace", [23, 36]]}
    {"passage": "Ada Lovelace wrote the first program.",
     "triple": {"head": "Ada Lovelace", "relation": "author of", "tail": "first program"}}

A span is a text, wherever it occurs in the passage as whole words, or its begin and end in characters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from erniecore.api import Json, RowError, nearest, shorten
from erniecore.api.data import Document, Origin, codes
from erniecore_ernie3_pretrain.units import inside_word

_FIELDS = ("passage", "spans", "triple")


class Triple(NamedTuple):
    """A fact: two entities and what one is to the other."""

    head: str
    relation: str
    tail: str


@dataclass(frozen=True, slots=True)
class Passage(Document):
    """A text with what is known of it.

    Attributes:
        spans: begin and end in characters of phrases and entities; in order, apart from each other.
        triple: what the text says, as a fact.
    """

    spans: tuple[tuple[int, int], ...] = ()
    triple: Triple | None = None


def matches(row: Json) -> bool:
    """By the field ``passage``."""
    return isinstance(row.get("passage"), str)


def parse(row: Json, origin: Origin) -> Passage:
    """One row; raises ``RowError`` with the JSON path of what is missing, wrong or not in the passage."""
    for name in row:
        if name not in _FIELDS and (close := nearest(name, _FIELDS)):
            raise _error(f"the field {name!r} is not known", f"$.{name}", row[name], repr(close), code=codes.BAD_VALUE)
    text = _text(row, "passage", "$")
    triple = None if row.get("triple") is None else _triple(row["triple"], text)
    spans = _spans(row.get("spans"), text)
    if triple is not None:
        spans = apart(text, [*spans, *_occurrences(text, triple.head), *_occurrences(text, triple.tail)])
    return Passage(text=text, origin=origin, spans=tuple(spans), triple=triple)


def apart(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of spans that overlap the longest; in order. Of spans of one length the first."""
    kept: list[tuple[int, int]] = []
    for begin, end in sorted(spans, key=lambda span: (span[0] - span[1], span[0])):
        if all(end <= other[0] or other[1] <= begin for other in kept):
            kept.append((begin, end))
    return sorted(kept)


def _occurrences(text: str, part: str) -> list[tuple[int, int]]:
    """Where ``part`` stands as whole words, one after the other."""
    found, at = [], text.find(part)
    while at >= 0:
        end = at + len(part)
        whole = not inside_word(text, at) and not inside_word(text, end)
        if whole:
            found.append((at, end))
        at = text.find(part, end if whole else at + 1)
    return found


def _triple(value: Any, text: str) -> Triple:
    if not isinstance(value, dict):
        raise _error("a triple is an object", "$.triple", value, '{"head": …, "relation": …, "tail": …}')
    for name in value:
        if name not in Triple._fields:
            raise _error(f"the field {name!r} is not known", f"$.triple.{name}", value[name], ", ".join(Triple._fields))
    triple = Triple(*(_text(value, name, "$.triple") for name in Triple._fields))
    for name in ("head", "tail"):
        part = value[name]
        if not _occurrences(text, part):
            raise _error(
                f"the {name} of the triple is not in the passage",
                f"$.triple.{name}",
                part,
                "words of the passage",
                fix="write it as the passage has it, or remove the row",
            )
    return triple


def _spans(value: Any, text: str) -> list[tuple[int, int]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _error("spans are a list", "$.spans", value, "texts, or pairs of begin and end", code=codes.WRONG_TYPE)
    named: list[tuple[int, int]] = []
    placed: list[tuple[int, int]] = []
    for i, item in enumerate(value):
        where = f"$.spans[{i}]"
        if isinstance(item, str) and item.strip():
            found = _occurrences(text, item)
            if not found:
                raise _error("the span is not in the passage", where, item, "words of the passage")
            named += found
        else:
            placed.append(_pair(item, where, text))
            clash = next((one for one in placed[:-1] if one[0] < placed[-1][1] and placed[-1][0] < one[1]), None)
            if clash:
                raise _error(f"the span overlaps that of {list(clash)}", where, item, "spans apart from each other")
    return apart(text, [*placed, *named])


def _pair(item: Any, where: str, text: str) -> tuple[int, int]:
    whole = isinstance(item, list) and len(item) == 2 and all(type(end) is int for end in item)
    if not whole or not 0 <= item[0] < item[1] <= len(text) or not text[item[0] : item[1]].strip():
        raise _error(
            "not a span of the passage", where, item, f"a text, or [begin, end] with 0 <= begin < end <= {len(text)}"
        )
    return item[0], item[1]


def _text(row: Json, name: str, where: str) -> str:
    place = f"{where}.{name}"
    if name not in row:
        found = "the fields " + ", ".join(map(repr, list(row)[:8])) if row else "an empty object"
        raise RowError(
            f"the field {name!r} is missing", code=codes.MISSING_FIELD, where=place, found=found, expected=repr(name)
        )
    value = row[name]
    if not isinstance(value, str):
        raise _error("a text is needed", place, value, "a text", code=codes.WRONG_TYPE)
    if not value.strip():
        raise _error("the text is empty", place, value, "a text", code=codes.EMPTY_TEXT)
    return value


def _error(
    message: str, where: str, found: object, expected: str, *, code: str = codes.BAD_VALUE, fix: str = ""
) -> RowError:
    return RowError(message, code=code, where=where, found=shorten(found), expected=expected, fix=fix)
