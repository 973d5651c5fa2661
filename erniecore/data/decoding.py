"""The JSON text of one row to an object, or the first thing that is wrong with it, with its place."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from erniecore_system.files import depth

from erniecore import codes
from erniecore.data.opening import LIMITS, ReadLimits
from erniecore.errors import RowError, shorten
from erniecore.types.records import Json


def decode_row(raw: bytes, position: int, limits: ReadLimits = LIMITS) -> Json | RowError:
    """The JSON object in ``raw``, or the first thing that is wrong with it."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as e:
        return RowError(
            "the row is not UTF-8",
            code=codes.BAD_UTF8,
            where="$",
            found=f"byte 0x{raw[e.start]:02x} at {e.start + 1}",
            fix="save the file as UTF-8",
        )
    if len(text) > limits.depth and text.count("[") + text.count("{") > limits.depth and depth(text) > limits.depth:
        return _row_error(codes.TOO_DEEP, "the row is nested too deeply", f"more than {limits.depth} levels")
    try:
        row = _load(text)
    except _Refused as e:
        return e.error
    except json.JSONDecodeError as e:
        return _malformed(e, text, position)
    except RecursionError:
        return _row_error(codes.TOO_DEEP, "the row is nested too deeply", f"more than {limits.depth} levels")
    except ValueError as e:  # an integer of thousands of digits
        return _row_error(codes.NOT_FINITE, "a number is out of range", shorten(str(e)))
    if not isinstance(row, dict):
        return RowError(
            "the row is not an object", code=codes.NOT_AN_OBJECT, where="$", found=shorten(row), expected="{…}"
        )
    if "\\u" not in text:
        return row
    if "\\u0000" in text and (where := _find(row, "$", _has_nul)):
        return RowError("a text holds a NUL character", code=codes.NUL, where=where, fix="remove it")
    if ("\\ud" in text or "\\uD" in text) and (where := _find(row, "$", _has_surrogate)):
        return RowError(
            "a text holds half of a surrogate pair",
            code=codes.LONE_SURROGATE,
            where=where,
            fix="write the character itself",
        )
    return row


class _Refused(ValueError):
    def __init__(self, error: RowError) -> None:
        super().__init__(str(error))
        self.error = error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise _Refused(
            RowError(
                "an object names a key twice", code=codes.DUPLICATE_KEY, where="$", found=shorten(twice), fix="keep one"
            )
        )
    return value


def _constant(text: str) -> NoReturn:
    error = _row_error(codes.NOT_FINITE, "JSON has no such number", text)
    error.fix = "write null, or leave the field out"
    raise _Refused(error)


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _Refused(_row_error(codes.NOT_FINITE, "a number is out of range", shorten(text)))
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
_scan = _DECODER.scan_once  # type: ignore[attr-defined]


def _load(text: str) -> Any:
    """As ``_DECODER.decode`` without its search for whitespace around the value, which costs more than a short row."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        end = -1
    return value if end == len(text) else _DECODER.decode(text)


def _row_error(code: str, message: str, found: str) -> RowError:
    return RowError(message, code=code, where="$", found=found)


def _malformed(error: json.JSONDecodeError, text: str, position: int) -> RowError:
    """The place in the file: rows of arrays may span lines. In an array on one line it is that in the element."""
    place = (
        f"line {position + error.lineno - 1}, column {error.colno}" if position > 0 else f"character {error.pos + 1}"
    )
    if error.pos < len(text) and text[error.pos] == "\0":
        return RowError("the row holds a NUL character", code=codes.NUL, where="$", found=place, fix="remove it")
    near = text[error.pos : error.pos + 24].strip()
    fix = {"'": "use double quotes", "T": "write true", "F": "write false", "N": "write null"}.get(near[:1], "")
    return RowError(
        f"the row is not valid JSON at {place}: {error.msg}",
        code=codes.MALFORMED,
        where="$",
        found=shorten(near) if near else "the end of the row",
        fix=fix,
    )


def _has_nul(text: str) -> bool:
    return "\0" in text


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _find(value: Any, path: str, test: Any) -> str:
    """JSON path of the first text or key for which ``test`` holds, or nothing."""
    if isinstance(value, str):
        return path if test(value) else ""
    if isinstance(value, dict):
        if any(map(test, value)):
            return path
        return next((p for k, v in value.items() if (p := _find(v, f"{path}.{k}", test))), "")
    if isinstance(value, list):
        return next((p for i, v in enumerate(value) if (p := _find(v, f"{path}[{i}]", test))), "")
    return ""
