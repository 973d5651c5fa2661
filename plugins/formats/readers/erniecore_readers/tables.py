"""Tables of text (csv, tsv) to rows, line by line: the first line names the fields, a cell in quotes may span lines.

The dialect is that of spreadsheets and of Python's ``csv``: quotes around cells that hold the delimiter, quotes or line ends;
a quote in such a cell is written twice. Nothing is guessed from the content; what cells become is in ``cells.py``.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from typing import IO, Any

from erniecore.api import DataError, RowError, shorten
from erniecore.api.rows import DataFile, RawRow, check_columns, codes, too_long
from erniecore_readers.cells import value_of

#: of a line that is too long, read at a time
_CHUNK = 1 << 20
#: what tables are separated by, beside their own delimiter
_OTHERS = (";", "\t", "|", ",")
#: a byte that is not UTF-8, as ``surrogateescape`` keeps it
_FOREIGN = re.compile("[\udc80-\udcff]")


def read_table(file: DataFile, delimiter: str) -> Iterator[RawRow]:
    """(line on which the row starts, JSON text of the row or why it cannot be had).

    Raises:
        DataError: the columns have no names, or two have the same; a quote is not closed.
    """
    with file.open() as stream:
        yield from _Table(stream, file, delimiter).rows()


class _Table:
    """One pass over a table.

    ``csv`` asks for line after line; what it has asked for since the last row is the row.
    """

    def __init__(self, stream: IO[bytes], file: DataFile, delimiter: str) -> None:
        self._stream, self._where, self._delimiter = stream, str(file.path), delimiter
        self._limit = file.limits.row_bytes
        self._line = 0  # read so far
        self._size = 0  # bytes of the current row
        self._long = False  # it has a line that is too long
        # the limit of csv is one for the whole process; ours is smaller than any that is set here
        csv.field_size_limit(max(csv.field_size_limit(), self._limit))

    def rows(self) -> Iterator[RawRow]:
        reader = csv.reader(self._lines(), delimiter=self._delimiter, strict=True)
        names: list[str] = []
        while True:
            start, self._size, self._long = self._line + 1, 0, False
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as e:
                if not names or "end of data" in str(e):
                    raise self._broken(str(e), start) from e
                yield start, _malformed(e)
                continue
            if not names:
                names = self._header(cells, start)
            elif cells:  # a line of nothing is no row
                yield start, too_long(self._limit) if self._long else self._row(names, cells)

    def _lines(self) -> Iterator[str]:
        """Lines as text; bytes that are not UTF-8 are kept as halves of surrogate pairs."""
        while line := self._stream.readline(self._limit + 1):
            self._line += 1
            self._size += len(line)
            if len(line) > self._limit and not line.endswith(b"\n"):
                while (rest := self._stream.readline(_CHUNK)) and not rest.endswith(b"\n"):
                    pass
                self._long, line = True, b"x\n"
            elif self._size > self._limit:
                raise self._broken(f"more than {self._limit} bytes in quotes", self._line)
            yield line.decode("utf-8", "surrogateescape")

    def _header(self, names: list[str], line: int) -> list[str]:
        other = next((sign for sign in _OTHERS if sign in names[0]), "") if len(names) == 1 else ""
        if other or not any(names):
            raise DataError(
                "the first line does not name the columns",
                code=codes.NOT_AN_ARRAY,
                where=f"{self._where}:{line}",
                found=shorten(names[0]) if names else "an empty line",
                expected=f"names with {self._delimiter!r} between them",
                fix=f"the columns seem to be separated by {other!r}: save the table with {self._delimiter!r}"
                if other
                else "write the names of the fields into the first line",
            )
        check_columns(names, f"{self._where}:{line}")
        return names

    def _row(self, names: Sequence[str], cells: Sequence[str]) -> bytes | RowError:
        if len(cells) != len(names):
            return RowError(
                "the row has another number of cells than the first line",
                code=codes.LENGTHS_DIFFER,
                where="$",
                found=str(len(cells)),
                expected=str(len(names)),
                fix=f"put cells that hold {self._delimiter!r} into quotes",
            )
        row: dict[str, Any] = {}
        for name, cell in zip(names, cells, strict=True):
            if not cell:
                continue
            value = value_of(name, cell)
            if isinstance(value, RowError):
                return value
            row[name] = value
        if any(map(_FOREIGN.search, cells)):
            return _not_utf8(names, cells)
        try:
            text = json.dumps(row, ensure_ascii=False).encode()
        except (
            UnicodeEncodeError
        ):  # half of a surrogate pair, escaped in a cell with JSON: whoever reads the row names it
            text = json.dumps(row).encode()
        return too_long(self._limit) if len(text) > self._limit else text

    def _broken(self, found: str, line: int) -> DataError:
        return DataError(
            "the table is broken: a quote is not closed",
            code=codes.BROKEN_ARRAY,
            where=f"{self._where}:{line}",
            found=found,
            expected='cells such as "said ""no"" twice"',
            fix="close the quote; a quote in a cell is written twice, and the cell stands in quotes",
        )


def _malformed(error: csv.Error) -> RowError:
    return RowError(
        "a cell is quoted wrongly",
        code=codes.MALFORMED,
        where="$",
        found=str(error),
        expected='cells such as "said ""no"" twice"',
        fix="write a quote in a cell twice, and put the cell into quotes",
    )


def _not_utf8(names: Sequence[str], cells: Sequence[str]) -> RowError:
    name, byte = next((n, found[0]) for n, cell in zip(names, cells, strict=True) if (found := _FOREIGN.search(cell)))
    return RowError(
        "the text is not UTF-8",
        code=codes.BAD_UTF8,
        where=f"$.{name}",
        found=f"byte 0x{ord(byte) - 0xDC00:02x}",
        fix="save the file as UTF-8",
    )
