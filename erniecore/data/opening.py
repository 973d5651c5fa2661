"""Data files as guarded byte streams: plain or gzip, with the errors that a file as a whole can have."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from erniecore.data import codes
from erniecore.errors import DataError, nearest

_BUFFER = 1 << 20
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class ReadLimits:
    """What a file may cost to read.

    Attributes:
        row_bytes: longest row; longer ones are skipped with an error and never held in memory.
        depth: nesting of brackets in a row.
        gzip_ratio: uncompressed bytes per compressed one, beyond the first ``gzip_free`` bytes.
    """

    row_bytes: int = 32 << 20
    depth: int = 100
    gzip_ratio: int = 100
    gzip_free: int = 64 << 20


LIMITS = ReadLimits()


@contextmanager
def open_bytes(path: Path, limits: ReadLimits = LIMITS) -> Iterator[IO[bytes]]:
    """The uncompressed bytes of a file, behind a byte order mark if it has one.

    Raises:
        DataError: missing, empty, UTF-16, a damaged or suspicious gzip stream (also later, when read).
    """
    check_path(path)
    try:
        raw = path.open("rb", buffering=_BUFFER)
    except OSError as e:
        raise _missing(path, e.strerror or str(e)) from e
    with raw:
        stream: IO[bytes] = raw
        packed = raw.peek(2)[:2] == b"\x1f\x8b"  # type: ignore[attr-defined,unused-ignore]
        if path.name.endswith(".gz"):
            if not packed:
                raise DataError(
                    "this is no gzip file", code=codes.BAD_GZIP, where=str(path), fix="remove the .gz ending"
                )
            guarded = _Gunzip(gzip.GzipFile(fileobj=raw), path, path.stat().st_size, limits)
            stream = cast("IO[bytes]", io.BufferedReader(guarded, _BUFFER))
        elif packed:
            raise DataError(
                "the file is compressed", code=codes.WRONG_ENCODING, where=str(path), fix="give it the ending .gz"
            )
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


def empty_file(path: Path) -> DataError:
    """The error for a file without rows."""
    return DataError("the file holds no rows", code=codes.EMPTY_FILE, where=str(path), expected="at least one row")


def check_path(path: Path) -> None:
    """Raise ``DataError`` unless this is a file that is not empty."""
    if not path.is_file():
        raise _missing(path, "no such file")
    if not path.stat().st_size:
        raise empty_file(path)


def _missing(path: Path, found: str) -> DataError:
    beside = (
        {p.name.split(".")[0]: p.name for p in path.parent.iterdir() if p.is_file()} if path.parent.is_dir() else {}
    )
    near = nearest(path.name.split(".")[0], beside, 0.7)  # equal endings would make any two names similar
    fix = f"did you mean {path.parent / beside[near]}?" if near and beside[near] != path.name else "check the path"
    return DataError(
        "the data file cannot be read",
        code=codes.MISSING_FILE,
        where=str(path),
        found=found,
        expected="a file",
        fix=fix,
    )


class _Gunzip(io.RawIOBase):
    """A gzip stream that ends with a data error where it is damaged or grows too much."""

    def __init__(self, stream: gzip.GzipFile, path: Path, packed: int, limits: ReadLimits) -> None:
        self._stream, self._path, self._size = stream, path, 0
        self._limit = max(limits.gzip_free, packed * limits.gzip_ratio)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        try:
            data = self._stream.read1(len(view))
        except (EOFError, zlib.error, gzip.BadGzipFile) as e:
            raise DataError(
                "the gzip stream is damaged",
                code=codes.BAD_GZIP,
                where=str(self._path),
                found=f"{e} after {self._size} bytes",
                fix="fetch or write the file again",
            ) from e
        view[: len(data)] = data
        self._size += len(data)
        if self._size > self._limit:
            raise DataError(
                "the gzip stream grows suspiciously",
                code=codes.GZIP_BOMB,
                where=str(self._path),
                found=f"more than {self._limit} bytes",
                fix="unpack it yourself if you trust it",
            )
        return len(data)
