"""The plugin objects of the readers. What reads a file is imported when one is read."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar

from erniecore.api import hookimpl
from erniecore.api.data import DecompressorPlugin, RowReaderPlugin

if TYPE_CHECKING:
    from erniecore.api.rows import DataFile, RawRow


class Csv(RowReaderPlugin):
    """Rows of tables whose first line names the columns."""

    name, summary = "csv", "Tables with commas: the first line names the fields, cells may hold JSON"
    delimiter: ClassVar[str] = ","

    def conformance_file(self, folder: Path) -> Path:
        """Three rows: a plain one, one over two lines, and one with an empty cell."""
        path = folder / f"rows.{self.name}"
        lines = ("instruction,output", "one,two", '"three, or\nmore",four', "five,")
        path.write_text("\n".join(line.replace(",", self.delimiter) for line in lines), encoding="utf-8")
        return path

    @hookimpl
    def ernie_read_rows(self, file: DataFile) -> Iterator[RawRow]:
        """Positions are the lines on which rows start; an empty cell is a field that is not there."""
        from erniecore_readers.tables import read_table

        return read_table(file, self.delimiter)


class Tsv(Csv):
    """The same with tabs."""

    name, summary = "tsv", "Tables with tabs: the first line names the fields, cells may hold JSON"
    delimiter = "\t"


class Xz(DecompressorPlugin):
    """Decompresses xz while reading."""

    name, summary = "xz", "xz around any other kind of file"
    magic = b"\xfd7zXZ\x00"
    damages = (lzma.LZMAError,)

    def conformance_file(self, folder: Path) -> Path:
        """Writes a file with one row."""
        path = folder / f"rows.jsonl.{self.name}"
        path.write_bytes(lzma.compress(b'{"text": "one"}\n'))
        return path

    @hookimpl
    def ernie_decompress(self, stream: IO[bytes]) -> BufferedIOBase:
        """By the standard library, within a limit of memory."""
        from erniecore_readers.xz import open_xz

        return open_xz(stream)


class Zst(DecompressorPlugin):
    """Decompresses zstandard while reading."""

    name, summary = "zst", "Zstandard around any other kind of file"
    magic = b"\x28\xb5\x2f\xfd"
    damages = (OSError,)

    def conformance_file(self, folder: Path) -> Path:
        """Writes a file with one row. Needs pyarrow."""
        from erniecore_readers.zst import compress

        path = folder / f"rows.jsonl.{self.name}"
        path.write_bytes(compress(b'{"text": "one"}\n'))
        return path

    @hookimpl
    def ernie_decompress(self, stream: IO[bytes]) -> BufferedIOBase:
        """By pyarrow, within a limit of memory."""
        from erniecore_readers.zst import open_zst

        return open_zst(stream)


csv, tsv, xz, zst = Csv(), Tsv(), Xz(), Zst()
