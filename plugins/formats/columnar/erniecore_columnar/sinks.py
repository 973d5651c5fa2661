"""Files that rows are written to: JSON Lines, plain or gzip, and parquet. A file appears whole or not at all.

Parquet needs one schema for all rows, which is known only behind the last: rows wait in a temporary file beside.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from erniecore.api import DataError, EnvironmentFault, Json, RowError, UsageError, install_command
from erniecore.api.rows import ReadLimits, codes
from erniecore_columnar.tables import split_table

_ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")
#: Rows of a batch of a table.
_BATCH = 1024
#: Fields whose objects have any shape, and so no columns; formats read them as JSON text, too.
_ANY_SHAPE = ("tools", "functions")


class Sink:
    """Rows on their way to a file."""

    def __init__(self, streams: Sequence[IO[bytes]], path: Path, out: Path) -> None:
        self._streams, self._path, self._out = streams, path, out
        self.rows = 0

    def write(self, row: Json) -> None:
        """Append a row to the file."""
        self._streams[0].write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self.rows += 1

    def commit(self) -> None:
        """Everything was written: the file takes its name."""
        for stream in self._streams:
            stream.close()
        path = self._path
        if _kind(self._out) == ".parquet":
            path = _to_parquet(self._path)
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(path, self._out)
        descriptor = os.open(self._out.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def open_sink(out: Path) -> Iterator[Sink]:
    """A sink for ``out``; without ``commit`` nothing is left of it.

    Raises:
        UsageError: no file with such an ending can be written, or not there.
        EnvironmentFault: pyarrow is missing.
    """
    kind = _kind(out)
    if kind == ".parquet":
        _pyarrow(out)
    with ExitStack() as stack:
        try:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent)))
        except OSError as e:
            raise UsageError("the file cannot be written", where=str(out), found=e.strerror or str(e)) from e
        path = place / "rows"
        raw = stack.enter_context(path.open("wb"))
        stream: IO[bytes] = raw
        if kind == ".jsonl.gz":
            # neither a time nor a name: equal rows give equal files
            packed = gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0)
            stack.callback(packed.close)
            stream = cast("IO[bytes]", packed)
        yield Sink([stream, raw], path, out)


def _kind(out: Path) -> str:
    for ending in _ENDINGS:
        if out.name.lower().endswith(ending) and len(out.name) > len(ending):
            return ending
    raise UsageError(
        "files of this kind cannot be written",
        where="--out",
        found=str(out),
        expected="one of " + ", ".join(_ENDINGS),
        fix=f"name a file, such as {out.with_suffix('.jsonl')}",
    )


def _pyarrow(out: Path) -> Any:
    try:
        return import_module("pyarrow")
    except ImportError as e:
        raise EnvironmentFault(
            "writing parquet files needs pyarrow",
            where=str(out),
            fix=install_command("pyarrow", of="erniecore-columnar"),
        ) from e


def _to_parquet(rows: Path) -> Path:
    """The rows as a table, read again and compared. Raises ``DataError`` where they do not fit into columns."""
    arrow, parquet = _pyarrow(rows), import_module("pyarrow.parquet")
    table = rows.with_name("rows.parquet")
    try:
        schemas = [_schema(arrow, batch) for batch in _batches(rows)]
        schema = arrow.unify_schemas(schemas, promote_options="permissive")
        with parquet.ParquetWriter(table, schema, compression="zstd") as file:
            for batch in _batches(rows):
                file.write_table(arrow.Table.from_pylist(batch, schema=schema))
    except arrow.ArrowException as e:
        raise _no_table(str(e).splitlines()[0][:200]) from e
    given = (row for batch in _batches(rows) for row in batch)
    for (number, raw), row in zip(split_table(table, ReadLimits().row_bytes), given, strict=True):
        if isinstance(raw, RowError) or json.loads(raw) != row:
            raise _no_table(f"row {number} would not come back as it is")
    return table


def _schema(arrow: Any, batch: list[dict[str, Any]]) -> Any:
    """Of all fields of all rows; pyarrow itself would look at the first row only."""
    names = dict.fromkeys(name for row in batch for name in row)
    return arrow.schema([(name, arrow.array([row.get(name) for row in batch]).type) for name in names])


def _no_table(found: str) -> DataError:
    return DataError(
        "the rows do not fit into the columns of one table",
        code=codes.NOT_CONVERTED,
        found=found,
        fix="write .jsonl, or convert rows of one kind at a time",
    )


def _batches(rows: Path) -> Iterator[list[dict[str, Any]]]:
    with rows.open("rb") as stream:
        while batch := [_flat(json.loads(line)) for line in islice(stream, _BATCH)]:
            yield batch


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    for name in _ANY_SHAPE:
        if name in row:
            row[name] = json.dumps(row[name], ensure_ascii=False)
    return row
