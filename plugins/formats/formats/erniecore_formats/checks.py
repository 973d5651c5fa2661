"""What rows are checked for, and how the errors read: JSON path, found, expected, one fix. Shared by all formats.

The codes are those of the core's table of data errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from erniecore.api import Json, RowError, nearest, shorten

MISSING, WRONG_TYPE, EMPTY_TEXT = "ERN-D030", "ERN-D031", "ERN-D032"
LENGTHS_DIFFER, UNKNOWN_ROLE, ROLE_ORDER, BAD_VALUE = "ERN-D033", "ERN-D034", "ERN-D035", "ERN-D036"
NOT_REPRESENTABLE = "ERN-D065"

_MEDIA = frozenset({"images", "image", "videos", "video", "audios", "audio"})

_NAMES = {str: "a text", list: "a list", dict: "an object", bool: "true or false", int: "a number", type(None): "null"}


def missing(row: Json, name: str, where: str = "$") -> RowError:
    """A field that must be there is not."""
    close = nearest(name, [k for k in row if k != name])
    return RowError(
        f"the field {name!r} is missing",
        code=MISSING,
        where=f"{where}.{name}",
        found="the fields " + ", ".join(map(repr, list(row)[:12])) if row else "an empty object",
        expected=repr(name),
        fix=f"is {close!r} meant to be {name!r}?" if close else f"add {name!r}",
    )


def wrong_type(value: object, where: str, expected: str, fix: str = "") -> RowError:
    """A field has another JSON type than it should."""
    kind = _NAMES.get(type(value), "a number")
    return RowError(
        f"{expected} is needed, this is {kind}",
        code=WRONG_TYPE,
        where=where,
        found=shorten(value),
        expected=expected,
        fix=fix,
    )


def bad_value(message: str, where: str, found: object, expected: str, fix: str = "") -> RowError:
    """A field has a value that it cannot have."""
    return RowError(message, code=BAD_VALUE, where=where, found=shorten(found), expected=expected, fix=fix)


def lengths_differ(where: str, found: str, expected: str, fix: str = "") -> RowError:
    """Lists that belong together do not fit."""
    return RowError(
        "lists that belong together differ in length",
        code=LENGTHS_DIFFER,
        where=where,
        found=found,
        expected=expected,
        fix=fix,
    )


def text(value: object, where: str, *, allow_empty: bool = False) -> str:
    """``value`` as a text; empty and whitespace-only texts only if ``allow_empty``."""
    if not isinstance(value, str):
        raise wrong_type(value, where, "a text")
    if not allow_empty and (not value or value.isspace()):
        raise RowError(
            "the text is empty",
            code=EMPTY_TEXT,
            where=where,
            found=shorten(value),
            expected="a text",
            fix="fill it or remove the row",
        )
    return value


def texts(value: object, where: str) -> list[str]:
    """A list of texts, stripped; one text counts as a list of one."""
    if isinstance(value, str):
        return [text(value, where).strip()]
    if not isinstance(value, list):
        raise wrong_type(value, where, "a text or a list of texts")
    return [text(item, f"{where}[{i}]").strip() for i, item in enumerate(value)]


def flag(value: object, where: str) -> bool:
    """0 or 1 (or a JSON boolean)."""
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise bad_value("the value must be 0 or 1", where, value, "0 or 1")


def flags(value: object, where: str, count: int, of: str) -> list[bool]:
    """A list of ``count`` flags."""
    if not isinstance(value, list):
        raise wrong_type(value, where, "a list of 0 and 1")
    if len(value) != count:
        raise lengths_differ(
            where, f"{len(value)} labels for {count} {of}", f"{count} labels", "give one label per turn"
        )
    return [flag(item, f"{where}[{i}]") for i, item in enumerate(value)]


def number(value: object, where: str) -> float:
    """``value`` as a float; raises ``RowError`` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(value, where, "a number")
    return float(value)


def filled(value: object, where: str, expected: str = "a list") -> Sequence[Any]:
    """A list that is not empty."""
    if not isinstance(value, list):
        raise wrong_type(value, where, expected)
    if not value:
        raise bad_value("the list is empty", where, value, "at least one entry")
    return value


#: names of two scores: of the chosen answer and of the other one
_SCORES = (("score_chosen", "score_rejected"), ("chosen_score", "rejected_score"), ("chosen_rating", "rejected_rating"))


def margin(row: Json) -> float | None:
    """How much better the preferred answer is: ``margin``, or the difference of two scores."""
    if row.get("margin") is not None:
        return number(row["margin"], "$.margin")
    for better, worse in _SCORES:
        if row.get(better) is not None or row.get(worse) is not None:
            for name in (better, worse):
                if name not in row:
                    raise missing(row, name)
            return number(row[better], f"$.{better}") - number(row[worse], f"$.{worse}")
    return None


def rating(row: Json) -> bool | None:
    """Whether an answer is desirable, where the row says so: ``label`` (or ``kto_tag``) is true or false."""
    name = "kto_tag" if "kto_tag" in row and "label" not in row else "label"
    value = row.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise bad_value("a rating is true or false", f"$.{name}", value, "true or false", "write true or false")


def no_media(row: Json, but: Sequence[str] = ()) -> None:
    """Refuse rows whose images, videos or sounds would be lost; ``but``: fields that are read."""
    for name in () if _MEDIA.isdisjoint(row) else sorted(_MEDIA):
        if row.get(name) and name not in but:
            raise media(f"$.{name}", row[name])


def media(where: str, found: object) -> RowError:
    """An image, video or sound stands where a text is read."""
    fix = "leave the media out, or write images and videos into messages (markers, `images` and `videos`); sounds are not read"
    return bad_value("these media are not read here", where, found, "a text-only row", fix)


def cannot_say(what: str) -> RowError:
    """A record has something that the format cannot represent."""
    return RowError(
        f"the format cannot represent {what}",
        code=NOT_REPRESENTABLE,
        where="$",
        found=what,
        fix="choose another format",
    )


def sayable(condition: bool, what: str) -> None:
    """Raise ``cannot_say`` unless ``condition`` holds."""
    if not condition:
        raise cannot_say(what)
