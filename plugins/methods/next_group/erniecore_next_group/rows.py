"""Rows of parts: what is given, and what is to be made of it. A part is a text, an image or a sound.

    {"given": [{"text": "red circle"}], "made": [{"image": "images/3.png"}]}
    {"given": [{"image": "images/3.png"}], "made": [{"text": "red circle"}]}
    {"given": [{"audio": "tones/a.wav"}], "made": [{"audio": "tones/b.wav"}]}

Images and sounds are paths, from the directory of the data file, or data URLs. Several images one after the other are frames of a
video.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from erniecore.api import Json, RowError, nearest, shorten
from erniecore.api.data import Document, Origin, codes

KINDS = ("text", "image", "audio")
_FIELDS = ("given", "made")


class Part(NamedTuple):
    """A part of a row.

    Attributes:
        kind: one of ``KINDS``. value: the text, or where image or sound is. where: JSON path in the row.
    """

    kind: str
    value: str
    where: str = "$"


@dataclass(frozen=True, slots=True)
class Parts(Document):
    """A row; ``text`` is its texts, for methods that read nothing else."""

    given: tuple[Part, ...] = ()
    made: tuple[Part, ...] = ()


def matches(row: Json) -> bool:
    """By a list of parts that are made."""
    made = row.get("made")
    first = made[0] if isinstance(made, list) and made else None
    return isinstance(first, dict) and len(first) == 1 and next(iter(first)) in KINDS


def parse(row: Json, origin: Origin) -> Parts:
    """One row; raises ``RowError`` with the JSON path of what is missing or wrong."""
    for name in row:
        if name not in _FIELDS and (close := nearest(name, _FIELDS)):
            raise _error(f"the field {name!r} is not known", f"$.{name}", row[name], repr(close))
    given = _parts(row.get("given") or [], "$.given")
    if "made" not in row:
        found = "the fields " + ", ".join(map(repr, list(row)[:8])) if row else "an empty object"
        message, where = "the field 'made' is missing", "$.made"
        raise RowError(message, code=codes.MISSING_FIELD, where=where, found=found, expected="a list of parts")
    made = _parts(row["made"], "$.made")
    if not made:
        raise _error("nothing is made", "$.made", row["made"], "a part or more")
    texts = " ".join(part.value for part in (*given, *made) if part.kind == "text")
    return Parts(text=texts, origin=origin, given=given, made=made)


def _parts(value: Any, where: str) -> tuple[Part, ...]:
    if not isinstance(value, list):
        raise _error("parts are a list", where, value, '[{"text": …}, {"image": …}]', code=codes.WRONG_TYPE)
    return tuple(_part(item, f"{where}[{index}]") for index, item in enumerate(value))


def _part(item: Any, where: str) -> Part:
    if not isinstance(item, dict) or len(item) != 1 or next(iter(item)) not in KINDS:
        raise _error("not a part", where, item, "an object with one of the keys " + ", ".join(KINDS))
    ((kind, value),) = item.items()
    if not isinstance(value, str):
        raise _error(f"{kind} is a text", f"{where}.{kind}", value, "a text", code=codes.WRONG_TYPE)
    if not value.strip():
        raise _error("the part is empty", f"{where}.{kind}", value, "a text", code=codes.EMPTY_TEXT)
    return Part(kind, value, f"{where}.{kind}")


def _error(message: str, where: str, found: object, expected: str, *, code: str = codes.BAD_VALUE) -> RowError:
    return RowError(message, code=code, where=where, found=shorten(found), expected=expected)
