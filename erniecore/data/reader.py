"""Rows of .json, .jsonl and .txt files (also .gz), of parquet and arrow files and of directories of such files, streaming:
each with its line, each bad one with its own error.

Line numbers are 1-based; in an array a row has the line on which its element starts. Rows of tables, and of directories
through all their files, have their number instead. A row that cannot be used is
yielded as a ``RowError`` in its place and reading goes on; what is wrong with a file as a whole is raised. Formats
come later: here a row is any JSON object; a document of a text file is ``{"text": …}``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from erniecore.data import codes
from erniecore.data.columnar import split_table
from erniecore.data.opening import LIMITS, ReadLimits, empty_file, open_bytes
from erniecore.data.opening_folders import ENDINGS, TABLES, ending_of, shards_of
from erniecore.data.splitting import RawRow, split_array, split_lines
from erniecore.data.splitting_text import split_text
from erniecore.errors import DataError, RowError, nearest, shorten
from erniecore.types import Json


def read_rows(path: Path, limits: ReadLimits = LIMITS) -> Iterator[tuple[int, Json | RowError]]:
    """(line, row or what is wrong with it), in file order.

    Raises:
        DataError: the file cannot be read, is empty, or is an array that is broken beyond single rows.
    """
    for line, raw in split_rows(path, limits):
        yield line, raw if isinstance(raw, RowError) else decode_row(raw, line, limits)


def split_rows(path: Path, limits: ReadLimits = LIMITS, *, document: str = "line") -> Iterator[RawRow]:
    """(line, JSON text of the row or why it cannot be had); the cheap half of ``read_rows``.

    Args:
        document: what makes a row of a text file: a ``line``, a ``paragraph`` or the whole ``file``.
    """
    empty = True
    files = shards_of(path)
    rows = _rows_of(path, limits, document) if files == (path,) else _counted(files, limits, document)
    for row in rows:
        empty = False
        yield row
    if empty:
        raise empty_file(path)


def _counted(files: Sequence[Path], limits: ReadLimits, document: str) -> Iterator[RawRow]:
    """Rows of several files, numbered through; single files may be empty."""
    number = 0
    for file in files:
        if not file.stat().st_size:
            continue
        for number, (_, raw) in enumerate(_rows_of(file, limits, document), number + 1):  # noqa: B020
            yield number, raw


def _rows_of(path: Path, limits: ReadLimits, document: str) -> Iterator[RawRow]:
    ending = _ending(path)
    if ending in TABLES:
        yield from split_table(path, limits)
        return
    with open_bytes(path, limits) as stream:
        yield from _cut(stream, path, ending, limits, document)


def _cut(stream: IO[bytes], path: Path, ending: str, limits: ReadLimits, document: str) -> Iterator[RawRow]:
    if ending == ".txt":
        yield from split_text(stream, limits.row_bytes, document)
        return
    start = stream.peek(1 << 16).lstrip()[:1] if ending == ".json" else b""  # type: ignore[attr-defined]
    if start == b"[":
        yield from split_array(stream, limits.row_bytes, str(path))
        return
    for count, row in enumerate(split_lines(stream, limits.row_bytes)):
        if not count:
            _check_first(path, ending, row)
        yield row


def decode_row(raw: bytes, line: int, limits: ReadLimits = LIMITS) -> Json | RowError:
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
    if len(text) > limits.depth and text.count("[") + text.count("{") > limits.depth and _depth(text) > limits.depth:
        return _row_error(codes.TOO_DEEP, "the row is nested too deeply", f"more than {limits.depth} levels")
    try:
        row = _load(text)
    except _Refused as e:
        return e.error
    except json.JSONDecodeError as e:
        return _malformed(e, text, line)
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
    """As ``_DECODER.decode`` without its search for blanks around the value, which costs more than a short row."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        end = -1
    return value if end == len(text) else _DECODER.decode(text)


def _row_error(code: str, message: str, found: str) -> RowError:
    return RowError(message, code=code, where="$", found=found)


def _malformed(error: json.JSONDecodeError, text: str, line: int) -> RowError:
    """The place in the file: rows of arrays may span lines."""
    place = f"line {line + error.lineno - 1}, column {error.colno}"
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


def _depth(text: str) -> int:
    """Deepest nesting of brackets outside of strings."""
    depth = deepest = 0
    inside = escaped = False
    for c in text:
        if inside:
            inside, escaped = c != '"' or escaped, c == "\\" and not escaped
        elif c == '"':
            inside = True
        elif c in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif c in "]}":
            depth -= 1
    return deepest


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


def _ending(path: Path) -> str:
    ending = ending_of(path)
    if ending not in ENDINGS and path.is_file():
        near = nearest(ending, ENDINGS)
        fix = f"rename it to {near}" if near else "convert it to .jsonl: one JSON object per line"
        if ending in (".bin", ".idx"):
            fix = "token files are read by `ernie run --method pt` alone, as training or held-out data"
        raise DataError(
            "data files of this kind cannot be read",
            code=codes.UNKNOWN_FILE_TYPE,
            where=str(path),
            found=ending or "no ending",
            expected=".json, .jsonl or .txt, also with .gz; .parquet or .arrow",
            fix=fix,
        )
    return ending


def _check_first(path: Path, ending: str, row: RawRow) -> None:
    """A file whose ending does not fit its shape is an error of the file, not of each of its lines."""
    line, raw = row
    if isinstance(raw, RowError):
        return
    whole = not isinstance(decode_row(raw, line), RowError)
    if ending == ".json" and not whole:
        raise DataError(
            "a .json file must hold an array",
            code=codes.NOT_AN_ARRAY,
            where=f"{path}:{line}",
            found=shorten(raw.strip()[:40].decode("utf-8", "replace")),
            expected="[{…}, {…}]",
            fix="put the rows into an array, or write one row per line and call it .jsonl",
        )
    if ending != ".json" and raw.strip() == b"[":
        raise DataError(
            "this is a JSON array, not JSON Lines", code=codes.NOT_AN_ARRAY, where=f"{path}:{line}", fix="call it .json"
        )
