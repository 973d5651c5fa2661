"""Compressed data files: the stream that a decompressor plugin gives, guarded against damage and against growing too much."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from erniecore import codes
from erniecore.errors import DataError
from erniecore.host import call_one
from erniecore.plugin import DecompressorPlugin

if TYPE_CHECKING:
    from erniecore.data.opening import ReadLimits

_BUFFER = 1 << 20


def decompressed(stream: IO[bytes], plugins: Sequence[DecompressorPlugin], path: Path, limits: ReadLimits) -> IO[bytes]:
    """``stream`` without its compressions, the outer one first; reading it raises ``DataError`` where it is damaged."""
    for plugin in plugins:
        unpacked = call_one(plugin, "ernie_decompress", stream=stream)
        stream = cast("IO[bytes]", io.BufferedReader(GuardedStream(unpacked, plugin, path, limits), _BUFFER))
    return stream


class GuardedStream(io.RawIOBase):
    """A decompressed stream that ends with a data error where it is damaged or grows too much."""

    def __init__(self, stream: io.BufferedIOBase, plugin: DecompressorPlugin, path: Path, limits: ReadLimits) -> None:
        self._stream, self._path, self._kind, self._size = stream, path, plugin.name, 0
        self._damages: tuple[type[Exception], ...] = (EOFError, *plugin.damages)
        self._limit = max(limits.gzip_free, path.stat().st_size * limits.gzip_ratio)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        try:
            data = self._stream.read1(len(view))
        except self._damages as e:
            raise DataError(
                f"the .{self._kind} stream is damaged",
                code=codes.BAD_GZIP,
                where=str(self._path),
                found=f"{e} after {self._size} bytes",
                fix="fetch or write the file again",
            ) from e
        except MemoryError as e:
            raise self._refusal("needs too much memory", str(e)) from e
        view[: len(data)] = data
        self._size += len(data)
        if self._size > self._limit:
            raise self._refusal("grows suspiciously", f"more than {self._limit} bytes")
        return len(data)

    def _refusal(self, how: str, found: str) -> DataError:
        return DataError(
            f"the .{self._kind} stream {how}",
            code=codes.GZIP_BOMB,
            where=str(self._path),
            found=found,
            fix="unpack it yourself if you trust it",
        )
