"""A small table as a file of either kind, for the conformance checks. Needs pyarrow."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path


def write_sample(path: Path) -> Path:
    """Two rows, the second with a null; parquet or arrow by the ending of ``path``."""
    arrow = import_module("pyarrow")
    table = arrow.table({"text": ["one", None], "count": [1, 2]})
    if path.suffix == ".parquet":
        import_module("pyarrow.parquet").write_table(table, path)
        return path
    with arrow.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)
    return path
