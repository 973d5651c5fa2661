"""A good reader: a row per line, under one key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.api import hookimpl
from erniecore.api.data import RowReaderPlugin

if TYPE_CHECKING:
    from erniecore.api.rows import DataFile, RawRow


class ToyReaderPlugin(RowReaderPlugin):
    """Reads files that end in ``.toy``."""

    name = "toy"
    summary = "a text per line, for the conformance kit"

    def conformance_file(self, folder: Path) -> Path:
        """Write a file with three rows."""
        path = folder / "rows.toy"
        path.write_text("one\ntwo\nthree\n")
        return path

    @hookimpl
    def ernie_read_rows(self, file: DataFile) -> Iterator[RawRow]:
        with file.open() as stream:
            for number, line in enumerate(stream, 1):
                yield number, json.dumps({"text": line.decode("utf-8", "replace").rstrip("\n")}).encode()


plugin = ToyReaderPlugin()
