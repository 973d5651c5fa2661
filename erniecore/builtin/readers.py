"""Readers of the core: JSON, JSON Lines; gzip around any of them; ``file://`` URLs. How is in ``erniecore.data``."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from erniecore.plugin import DecompressorPlugin, RowReaderPlugin, SchemePlugin, hookimpl

if TYPE_CHECKING:
    from erniecore.data.opening import DataFile, RawRow


class JsonArray(RowReaderPlugin):
    """An array of rows, or rows one after the other."""

    name, summary = "json", "A JSON array of rows"

    @hookimpl
    def ernie_read_rows(self, file: DataFile) -> Iterator[RawRow]:
        """Yields one row per array element."""
        from erniecore.data.json_rows import read_json

        return read_json(file, array=True)


class JsonLines(RowReaderPlugin):
    """One row per line; also an array, or rows over several lines."""

    name, summary = "jsonl", "JSON Lines: a row per line"

    @hookimpl
    def ernie_read_rows(self, file: DataFile) -> Iterator[RawRow]:
        """Yields one row per line."""
        from erniecore.data.json_rows import read_json

        return read_json(file, array=False)


class NewlineDelimitedJson(JsonLines):
    """JSON Lines by their other name."""

    name = "ndjson"


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


json, jsonl, ndjson = JsonArray(), JsonLines(), NewlineDelimitedJson()
gz, file = Gzip(), LocalFile()
