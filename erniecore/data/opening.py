"""Data files as guarded byte streams, plain or compressed, with the errors that a file as a whole can have."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from erniecore import codes
from erniecore.data.file_types import FileTypes
from erniecore.errors import DataError, RowError, nearest
from erniecore.plugin import DecompressorPlugin

#: (position of the row as in ``Origin``, its JSON text or why it cannot be had)
RawRow: TypeAlias = "tuple[int, bytes | RowError]"

_BUFFER = 1 << 20
#: ``owner/name``, perhaps with a split, and no file's ending
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w-]+(\.\d+)*(:\w+)?")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class ReadLimits:
    """What a file may cost to read.

    Attributes:
        row_bytes: longest row; longer ones are skipped with an error and never held in memory.
        depth: nesting of brackets in a row.
        gzip_ratio: uncompressed bytes per compressed one, beyond the first ``gzip_free`` bytes; of any compression.
    """

    row_bytes: int = 32 << 20
    depth: int = 100
    gzip_ratio: int = 100
    gzip_free: int = 64 << 20


LIMITS = ReadLimits()


@dataclass(frozen=True)
class DataFile:
    """A file as its reader gets it.

    Attributes:
        document: what makes a row of plain text: a ``line``, a ``paragraph`` or the whole ``file``.
    """

    path: Path
    limits: ReadLimits = LIMITS
    document: str = "line"

    def open(self) -> AbstractContextManager[IO[bytes]]:
        """See :func:`open_bytes`; also has ``peek``."""
        return open_bytes(self.path, self.limits)


@contextmanager
def open_bytes(path: Path, limits: ReadLimits = LIMITS) -> Iterator[IO[bytes]]:
    """The uncompressed bytes of a file, behind a byte order mark if it has one.

    Raises:
        DataError: missing, empty, UTF-16, a damaged or suspicious compressed stream (also later, when read).
    """
    check_path(path)
    types = FileTypes()
    compression = types.of(path).compression
    try:
        raw = path.open("rb", buffering=_BUFFER)
    except OSError as e:
        raise _missing(path, e.strerror or str(e)) from e
    with raw:
        _check_magic(raw.peek(16), path, compression, types.decompressors())  # type: ignore[attr-defined,unused-ignore]
        stream: IO[bytes] = raw
        if compression:
            from erniecore.data.decompression import decompressed

            stream = decompressed(stream, compression, path, limits)
        start = stream.peek(3)[:3]  # type: ignore[attr-defined]
        if start[:2] in _UTF16:
            raise DataError(
                "the file is UTF-16",
                code=codes.WRONG_ENCODING,
                where=str(path),
                expected="UTF-8",
                fix="convert it to UTF-8",
            )
        if start == b"\xef\xbb\xbf":
            stream.read(3)
        yield stream


def _check_magic(
    start: bytes,
    path: Path,
    compression: tuple[DecompressorPlugin, ...],
    installed: list[DecompressorPlugin],
) -> None:
    """That a file with this ``start`` is compressed as its name says. Raises ``DataError``."""
    if compression:
        outer = compression[0]
        if not start.startswith(outer.magic):
            raise DataError(
                f"this is no .{outer.name} file",
                code=codes.BAD_GZIP,
                where=str(path),
                fix=f"remove the .{outer.name} ending",
            )
        return
    for plugin in installed:
        if plugin.magic and start.startswith(plugin.magic):
            raise DataError(
                "the file is compressed",
                code=codes.WRONG_ENCODING,
                where=str(path),
                fix=f"give it the ending .{plugin.name}",
            )


def too_long(limit: int) -> RowError:
    """The error for a row beyond the limit."""
    return RowError(
        "the row is too long", code=codes.TOO_LONG_ROW, where="$", found=f"more than {limit} bytes", fix="split the row"
    )


def check_columns(names: Sequence[str], where: str) -> None:
    """Raise ``DataError`` where a table names a column twice. ``where``: the file, with its line if it has lines."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        message = "the table names a column twice"
        raise DataError(message, code=codes.DUPLICATE_KEY, where=where, found=repr(twice[0]), fix="keep one")


def empty_file(path: Path) -> DataError:
    """The error for a file without rows."""
    return DataError("the file holds no rows", code=codes.EMPTY_FILE, where=str(path), expected="at least one row")


def check_path(path: Path) -> None:
    """Raise ``DataError`` unless this is a file that is not empty."""
    if not os.path.isfile(path):
        raise _missing(path, "no such file")
    if not path.stat().st_size:
        raise empty_file(path)


def _missing(path: Path, found: str) -> DataError:
    beside = (
        {p.name.split(".")[0]: p.name for p in path.parent.iterdir() if p.is_file()} if path.parent.is_dir() else {}
    )
    near = nearest(path.name.split(".")[0], beside, 0.7)  # equal endings would make any two names similar
    fix = f"did you mean {path.parent / beside[near]}?" if near and beside[near] != path.name else "check the path"
    if _HUB_ID.fullmatch(str(path)) and not os.path.isdir(path.parent):
        found = "the id of a data set, which is not fetched unless the hub is named"
        fix = f"to fetch it from the Hugging Face hub, name it hf:{path}"
    return DataError(
        "the data file cannot be read",
        code=codes.MISSING_FILE,
        where=str(path),
        found=found,
        expected="a file or a directory of files",
        fix=fix,
    )
