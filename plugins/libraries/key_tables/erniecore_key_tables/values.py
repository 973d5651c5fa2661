"""Values of foreign files as plain typed values. Pure functions; each raises ``ValueError`` with words for the user.

Other toolkits read YAML 1.1, where ``yes`` and ``off`` are truth values and ``1_000`` is a number; our reader gives text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from erniecore.api import nearest

T = TypeVar("T")

_TRUE, _FALSE = ("true", "yes", "on", "1", "y", "t"), ("false", "no", "off", "0", "n", "f")
#: characters of a number; Python refuses to convert much longer ones
_LONGEST = 100
_GROUPED = re.compile(r"[-+]?[0-9][0-9_]*")


def is_empty(value: Any) -> bool:
    """Whether a value says nothing: null, ``None`` as text, empty text."""
    return value is None or (isinstance(value, str) and value.strip() in ("", "None", "none", "null"))


def flag(value: Any) -> bool:
    """A truth value; ``1``, ``0`` and YAML 1.1's words count."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("must be true or false")


def number(value: Any) -> float:
    """A number, also as text."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("must be a number") from None
    if result != result or result in (float("inf"), float("-inf")):
        raise ValueError("must be a finite number")
    return result


def whole(value: Any) -> int:
    """A whole number of 64 bits; ``1_000``, ``1e3`` and ``8.0`` count, ``2 ** 15`` does not."""
    if isinstance(value, str) and _GROUPED.fullmatch(value.strip()):
        result = int(value.replace("_", "")) if len(value) < _LONGEST else 2**64
    elif isinstance(value, int) and not isinstance(value, bool):
        result = value
    else:
        try:
            exact = number(value)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if exact != int(exact):
            raise ValueError("must be a whole number")
        result = int(exact)
    if abs(result) >= 2**63:
        raise ValueError("must be a whole number of at most 64 bits")
    return result


def text(value: Any) -> str:
    """Text; a number or truth value as it would be written."""
    if isinstance(value, (dict, list)):
        raise ValueError("must be text")
    return ("true" if value else "false") if isinstance(value, bool) else str(value).strip()


def items(value: Any) -> list[str]:
    """``a, b`` or ``[a, b]`` as a list of texts without blanks; empty texts are left out."""
    parts = value if isinstance(value, list) else str(value).split(",")
    if any(isinstance(part, (dict, list)) for part in parts):
        raise ValueError("must be a list of texts")
    return [str(part).strip() for part in parts if str(part).strip()]


def words(value: Any) -> list[str]:
    """``a b`` or ``[a, b]`` as a list of words."""
    return [word for part in (value if isinstance(value, list) else [value]) for word in str(part).split()]


def one_of(value: str, known: Mapping[str, T], *, ignore_case: bool = False) -> T:
    """``known[value]``; raises ``ValueError`` with the nearest name."""
    names = {name.lower(): name for name in known} if ignore_case else {name: name for name in known}
    name = names.get(value.lower() if ignore_case else value)
    if name is None:
        close = nearest(value, known)
        hint = f"; did you mean {close}?" if close else ""
        raise ValueError(f"must be one of {', '.join(known)}{hint}")
    return known[name]


def anything(value: Any) -> Any:
    """The value as it is."""
    return value


#: what a key holds -> how it is read; the names are those of the table
TYPES: dict[str, Callable[[Any], Any]] = {
    "flag": flag,
    "whole": whole,
    "number": number,
    "text": text,
    "list": items,
    "words": words,
    "any": anything,
}
