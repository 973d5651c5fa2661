"""Rows of data files and of directories of such files, streaming: each with its position, each bad one with its own error.

Positions are 1-based: a line, or a row's number where the file has no lines and in directories through all their files. A
row that cannot be used is yielded as a ``RowError`` in its place and reading goes on; what is wrong with a file as a whole
is raised. How a kind of file is read is up to its reader plugin; formats come later: here a row is any JSON object.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from erniecore.data.decoding import decode_row
from erniecore.data.file_types import FileTypes
from erniecore.data.opening import LIMITS, DataFile, RawRow, ReadLimits, check_path, empty_file
from erniecore.data.shards import shards_of
from erniecore.errors import RowError
from erniecore.host import call_one
from erniecore.types.records import Json


def read_rows(path: Path, limits: ReadLimits = LIMITS) -> Iterator[tuple[int, Json | RowError]]:
    """(position, row or what is wrong with it), in file order.

    Raises:
        DataError: the file cannot be read, is empty, or is an array that is broken beyond single rows.
    """
    for position, raw in split_rows(path, limits):
        yield position, raw if isinstance(raw, RowError) else decode_row(raw, position, limits)


def split_rows(path: Path, limits: ReadLimits = LIMITS, *, document: str = "line") -> Iterator[RawRow]:
    """(position, JSON text of the row or why it cannot be had); the cheap half of ``read_rows``.

    Args:
        document: see ``DataFile``.
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
    if not os.path.isfile(path):
        check_path(path)  # a wrong name matters more than its ending
    reader = FileTypes().row_reader(path)
    check_path(path)
    rows: Iterator[RawRow] = call_one(reader, "ernie_read_rows", file=DataFile(path, limits, document))
    yield from rows
