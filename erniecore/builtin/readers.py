"""Readers of the core: gzip around files of any kind, and ``file://`` URLs."""

from __future__ import annotations

import gzip
import zlib
from io import BufferedIOBase
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from erniecore.plugin import DecompressorPlugin, SchemePlugin, hookimpl


class Gzip(DecompressorPlugin):
    """Decompresses gzip while reading."""

    name = "gz"
    summary = "gzip around any other kind of file"
    magic = b"\x1f\x8b"
    damages = (zlib.error, gzip.BadGzipFile)

    @hookimpl
    def ernie_decompress(self, stream: IO[bytes]) -> BufferedIOBase:
        """By the standard library."""
        return gzip.GzipFile(fileobj=stream)


class LocalFile(SchemePlugin):
    """Resolves ``file://`` URLs to local paths."""

    name = "file"
    summary = "Files of this machine by their URL"

    @hookimpl
    def ernie_fetch_file(self, url: str) -> Path:
        """Returns the path; nothing is copied."""
        return Path(unquote(urlsplit(url).path))


gz, file = Gzip(), LocalFile()
