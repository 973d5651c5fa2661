"""The plugin objects of columnar files. pyarrow is imported when one is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.api import hookimpl
from erniecore.api.data import RowReaderPlugin

if TYPE_CHECKING:
    from erniecore.api.rows import DataFile, RawRow


class Parquet(RowReaderPlugin):
    """Rows of parquet files, row group by row group."""

    name = "parquet"
    summary = "Apache Parquet, batch by batch"

    def conformance_file(self, folder: Path) -> Path:
        """Two rows, one with a null."""
        from erniecore_columnar.samples import write_sample

        return write_sample(folder / f"rows.{self.name}")

    @hookimpl
    def ernie_read_rows(self, file: DataFile) -> Iterator[RawRow]:
        """A null is a field that is not there."""
        from erniecore_columnar.tables import split_table

        return split_table(file.path, file.limits.row_bytes)


class Arrow(Parquet):
    """Rows of arrow files and streams, such as Hugging Face datasets saves."""

    name = "arrow"
    summary = "Apache Arrow files and streams, as Hugging Face datasets saves them"


parquet, arrow = Parquet(), Arrow()
