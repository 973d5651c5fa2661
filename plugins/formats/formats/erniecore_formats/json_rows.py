"""JSON Lines, JSON arrays and objects over several lines to the bytes of their rows, with line numbers, streaming.

An array is split by its brackets and strings alone, so a row whose inside is wrong costs that row only. Line numbers are
those on which rows start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

from erniecore.api import DataError, RowError, shorten
from erniecore.api.rows import DataFile, RawRow, codes, decode_row, too_long

_CHUNK = 1 << 20
#: structure outside of strings: whole strings first, then brackets, commas and the start of a string that goes on
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},"]', re.DOTALL)
_SPACE = re.compile(rb"\s*")
#: the rest of a string
_TAIL = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
#: bytes that decide how the rest is read
_LOOK = 1 << 16
#: an array of rows; in JSON Lines, a line that is some other list is one bad row
_ARRAY = re.compile(rb"\[\s*(\{|\]|\Z)")
#: an object over several lines, as pretty-printers write it; a line of JSON Lines that is cut off is followed by another row
_SPREAD = re.compile(rb'\{(?:[^\n]*[{\[,])?[ \t\r]*\n\s*"')


def read_json(file: DataFile, *, array: bool) -> Iterator[RawRow]:
    """Rows by either name: the elements of an array, objects that are spread over lines, else a row per line.

    Args:
        array: the file should hold one: any list is, and a first line that is not whole is an error of the file.

    Raises:
        DataError: an array or a spread-out object that is broken beyond single rows.
    """
    limit, where = file.limits.row_bytes, str(file.path)
    with file.open() as stream:
        start = stream.peek(_LOOK)[:_LOOK].lstrip()  # type: ignore[attr-defined]
        if start.startswith(b"[") if array else _ARRAY.match(start):
            yield from split_array(stream, limit, where)
            return
        if _SPREAD.match(start):
            yield from _ObjectSplitter(stream, limit, where).rows()
            return
        for count, row in enumerate(split_lines(stream, limit)):
            if array and not count:
                _refuse_part(file, row)
            yield row


def bounded_lines(stream: IO[bytes], limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Every line with its number, empty ones too; None for one beyond ``limit``, which is read past and never held."""
    number = 0
    while line := stream.readline(limit + 1):
        number += 1
        if len(line) > limit and not line.endswith(b"\n"):
            while (rest := stream.readline(_CHUNK)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        else:
            yield number, line


def split_lines(stream: IO[bytes], limit: int) -> Iterator[RawRow]:
    """One row per line; lines of whitespace are no rows. Lines beyond ``limit`` are read past."""
    for number, line in bounded_lines(stream, limit):
        if line is None:
            yield number, too_long(limit)
        elif row := line.rstrip():
            yield number, row


def split_array(stream: IO[bytes], limit: int, where: str) -> Iterator[RawRow]:
    """One row per element of the array that the stream consists of.

    Raises ``DataError`` where the array is not closed or something follows it."""
    return _ArraySplitter(stream, limit, where).rows()


class _ArraySplitter:
    """State of the scan: what is read but not yet dealt with, how deep, and whether inside of a string."""

    _whole, _end = "array", "]"

    def __init__(self, stream: IO[bytes], limit: int, where: str) -> None:
        self._stream, self._limit, self._where = stream, limit, where
        self._buffer = b""
        self._start = 0  # of the current element in the buffer
        self._index = -1  # of the element that was named last
        self._position = 0  # of the scan
        self._line = 1  # at _counted
        self._counted = 0
        self._depth = 0
        self._in_string = False
        self._skipping = False
        self._closed = False

    def rows(self) -> Iterator[RawRow]:
        while chunk := self._stream.read(_CHUNK):
            self._compact()
            self._buffer += chunk
            yield from self._scan()
            if len(self._buffer) - self._start > self._limit and not self._skipping:
                self._skipping = True
                yield self._element_position(), too_long(self._limit)
        self._check_end()
        if not self._closed:
            self._advance(len(self._buffer))
            raise self._broken(f"the {self._whole} is not closed", "end of file", self._end)

    def _compact(self) -> None:
        """Forget what lies before the current element, or before the scan in an element that is skipped."""
        keep = self._position if self._skipping else self._start
        self._advance(keep)
        self._buffer = self._buffer[keep:]
        self._position -= keep
        self._start = 0
        self._counted = max(self._counted - keep, 0)

    def _scan(self) -> Iterator[RawRow]:
        while True:
            if self._in_string:
                tail = _TAIL.match(self._buffer, self._position)
                if not tail:
                    self._position = self._before_escape()
                    return
                self._position, self._in_string = tail.end(), False
            for match in _TOKEN.finditer(self._buffer, self._position):
                token = match[0]
                self._position = match.end()
                if token == b'"':
                    self._in_string = True
                    break
                if len(token) == 1:
                    yield from self._structure(token, match.start())
            else:
                self._position = len(self._buffer)
                self._check_end()
                return

    def _check_end(self) -> None:
        if self._closed and self._buffer[self._start :].strip():
            raise self._broken("something follows the array", "more text", "the end of the file")

    def _before_escape(self) -> int:
        """Where the scan of a string goes on: an escape that the chunk cuts stays whole."""
        body = self._buffer[self._position :]
        cut = (len(body) - len(body.rstrip(b"\\"))) % 2
        return len(self._buffer) - cut

    def _structure(self, token: bytes, at: int) -> Iterator[RawRow]:
        if self._closed:
            raise self._broken("something follows the array", token.decode(), "the end of the file")
        if token in b"[{":
            self._depth += 1
            if self._depth == 1:
                self._start = at + 1
        elif token in b"]}":
            self._depth -= 1
            if self._depth == 0:
                yield from self._element(at, last=True)
                self._closed = True
        elif self._depth == 1:
            yield from self._element(at, last=False)

    def _element(self, end: int, *, last: bool) -> Iterator[RawRow]:
        raw = self._buffer[self._start : end]
        if self._skipping:
            self._skipping = False
        elif raw.strip():
            yield self._element_position(), raw.strip()
        elif not last:
            yield (
                self._element_position(),
                RowError("an element is missing", code=codes.MALFORMED, where="$", found=","),
            )
        self._start = end + 1

    def _element_position(self) -> int:
        """See ``Origin``: on the first line all elements may stand, so there each has its index."""
        line = self._element_line()
        self._index += 1
        return -1 - self._index if line == 1 else line

    def _element_line(self) -> int:
        first = _SPACE.match(self._buffer, self._start)
        self._advance(first.end() if first else self._start)
        return self._line

    def _advance(self, until: int) -> None:
        if until > self._counted:
            self._line += self._buffer.count(b"\n", self._counted, until)
            self._counted = until

    def _broken(self, message: str, found: str, expected: str) -> DataError:
        self._advance(self._position)
        return DataError(
            f"the JSON {self._whole} is broken: {message}",
            code=codes.BROKEN_ARRAY,
            where=f"{self._where}:{self._line}",
            found=found,
            expected=expected,
            fix="repair the file, or write one row per line and call it .jsonl",
        )


class _ObjectSplitter(_ArraySplitter):
    """Objects one after the other, with nothing but space between them."""

    _whole, _end = "object", "}"

    def _structure(self, token: bytes, at: int) -> Iterator[RawRow]:
        if not self._depth and token != b"{":
            raise self._broken("something stands between the objects", token.decode(), "{")
        if token in b"[{":
            self._depth += 1
        elif token in b"]}":
            self._depth -= 1
            if not self._depth:
                yield from self._element(at + 1, last=False)
                self._start = at + 1

    def _element_position(self) -> int:
        return self._element_line()

    def _check_end(self) -> None:
        self._closed = not self._depth and not self._buffer[self._start :].strip()


def _refuse_part(file: DataFile, first: RawRow) -> None:
    """An object over several lines is an error of the file, too."""
    line, raw = first
    if isinstance(raw, bytes) and isinstance(decode_row(raw, line), RowError):
        raise DataError(
            "a .json file must hold an array",
            code=codes.NOT_AN_ARRAY,
            where=f"{file.path}:{line}",
            found=shorten(raw.strip()[:40].decode("utf-8", "replace")),
            expected="[{…}, {…}]",
            fix="put the rows into an array, or write one row per line and call it .jsonl",
        )
