"""A stream of zstandard, decompressed while it is read, by pyarrow: its decoder takes windows of at most 128 MiB."""

from __future__ import annotations

import io
from importlib import import_module
from typing import IO, Any

from erniecore_catalog import install_command

from erniecore.api import EnvironmentFault


def open_zst(stream: IO[bytes]) -> io.BufferedIOBase:
    """The uncompressed bytes of all frames.

    Raises:
        EnvironmentFault: pyarrow is not installed.
        OSError: the stream is cut off or damaged. MemoryError: it needs a window of more than 128 MiB. Both when it is read.
    """
    arrow = _import()
    return io.BufferedReader(_ZstStream(arrow.CompressedInputStream(arrow.PythonFile(stream, mode="r"), "zstd")))


def compress(data: bytes) -> bytes:
    """Returns ``data`` as one frame."""
    frame: bytes = _import().Codec("zstd").compress(data, asbytes=True)
    return frame


class _ZstStream(io.RawIOBase):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        try:
            data: bytes = self._stream.read(len(view))
        except OSError as e:
            if "too much memory" in str(e):
                raise MemoryError("a window of more than 128 MiB") from e
            raise
        view[: len(data)] = data
        return len(data)


def _import() -> Any:
    try:
        return import_module("pyarrow")
    except ImportError as e:
        fix = install_command("pyarrow", of="erniecore-readers")
        raise EnvironmentFault("reading .zst files needs pyarrow", fix=fix) from e
