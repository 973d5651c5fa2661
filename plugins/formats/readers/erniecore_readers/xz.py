"""A stream of xz, decompressed while it is read, by a decoder that may not take more memory than a limit.

``lzma.LZMAFile`` has no such limit, and a file of a few bytes can ask for gigabytes of dictionary.
"""

from __future__ import annotations

import io
import lzma
from typing import IO

#: of the decoder: the dictionary of ``xz -9`` is 64 MiB
MEMORY = 256 << 20
_CHUNK = 1 << 16
#: .xz files may be padded by NULs behind each stream
_PADDING = b"\0"


def open_xz(stream: IO[bytes]) -> io.BufferedIOBase:
    """The uncompressed bytes.

    Raises (when it is read):
        EOFError: the stream is cut off. lzma.LZMAError: it is damaged. MemoryError: it needs more than ``MEMORY``.
    """
    return io.BufferedReader(_XzStream(stream))


class _XzStream(io.RawIOBase):
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._decoder = _decoder()
        self._rest = b""  # behind the end of a stream of the file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        while True:
            if self._decoder.eof and not self._next_stream():
                return 0
            data = self._decompress(len(view))
            if data:
                view[: len(data)] = data
                return len(data)

    def _next_stream(self) -> bool:
        """Whether another one follows, as ``cat a.xz b.xz`` and parallel compressors write it."""
        self._rest = self._decoder.unused_data.lstrip(_PADDING)
        while not self._rest:
            chunk = self._stream.read(_CHUNK)
            if not chunk:
                return False
            self._rest = chunk.lstrip(_PADDING)
        self._decoder = _decoder()
        return True

    def _decompress(self, most: int) -> bytes:
        data = b""
        if self._decoder.needs_input:
            data, self._rest = self._rest or self._stream.read(_CHUNK), b""
            if not data:
                raise EOFError("the stream ends too early")
        try:
            return self._decoder.decompress(data, most)
        except lzma.LZMAError as e:
            if "limit" in str(e):
                raise MemoryError(f"more than {MEMORY >> 20} MiB") from e
            raise


def _decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
