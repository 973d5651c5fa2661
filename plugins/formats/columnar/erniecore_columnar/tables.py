"""Rows of parquet and arrow files, batch by batch. Each leaves as JSON text, so that every check of the reader applies.

What JSON does not know becomes text (times as ISO 8601, decimals as written, bytes as their number). A null is a field that
is not there: columns cannot tell the two apart. Needs pyarrow, which is imported here and only when such a file is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, time
from importlib import import_module
from pathlib import Path
from typing import Any

from erniecore.api import DataError, EnvironmentFault, RowError, install_command
from erniecore.api.rows import RawRow, check_columns, codes, too_long

#: What a batch may hold, as far as the file says.
_BATCH_ROWS, _BATCH_BYTES = 1024, 8 << 20
#: Read at a time; without it a whole column of a row group would be.
_BUFFER = 1 << 20
_MAGIC = b"ARROW1"


def split_table(path: Path, row_bytes: int) -> Iterator[RawRow]:
    """(1-based number, JSON text of the row or why it cannot be had).

    Raises:
        DataError: the file is damaged, or names a column twice.
        EnvironmentFault: pyarrow is not installed.
    """
    arrow = _import(path)
    number = 0
    with _readable(arrow, path):
        for batch in _parquet(path) if path.suffix.lower() == ".parquet" else _stream(arrow, path):
            check_columns(batch.schema.names, str(path))
            nested = any(arrow.types.is_nested(field.type) for field in batch.schema)
            for row in _rows(batch):
                number += 1
                yield number, row if isinstance(row, RowError) else _text(row, nested, row_bytes)


def _import(path: Path) -> Any:
    try:
        return import_module("pyarrow")
    except ImportError as e:
        raise EnvironmentFault(
            "reading parquet and arrow files needs pyarrow",
            where=str(path),
            fix=install_command("pyarrow", of="erniecore-columnar"),
        ) from e


@contextmanager
def _readable(arrow: Any, path: Path) -> Iterator[None]:
    """Arrow's own errors as an error of the file."""
    try:
        yield
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as e:
        raise DataError(
            "the file cannot be read as a table",
            code=codes.DAMAGED_TABLE,
            where=str(path),
            found=str(e).splitlines()[0][:200] if str(e) else type(e).__name__,
            fix="fetch or write the file again",
        ) from e


def _parquet(path: Path) -> Iterator[Any]:
    parquet = import_module("pyarrow.parquet")
    with parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
        about = file.metadata
        size = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        yield from file.iter_batches(batch_size=_batch_rows(size, about.num_rows))


def _stream(arrow: Any, path: Path) -> Iterator[Any]:
    """Batches of an arrow stream (what ``save_to_disk`` writes) or an arrow file; wrong offsets are found first."""
    with arrow.OSFile(str(path)) as source:
        is_file = source.read(len(_MAGIC)) == _MAGIC
        source.seek(0)
        reader = arrow.ipc.open_file(source) if is_file else arrow.ipc.open_stream(source)
        count = reader.num_record_batches if is_file else None
        for batch in (reader.get_batch(i) for i in range(count)) if count is not None else reader:
            batch.validate(full=True)
            step = _batch_rows(batch.nbytes, batch.num_rows)
            for start in range(0, batch.num_rows, step):
                yield batch.slice(start, step)


def _batch_rows(size: int, rows: int) -> int:
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(size, 1)))


def _rows(batch: Any) -> Iterator[dict[str, Any] | RowError]:
    """Python values, one row at a time only where the batch has a value that cannot be one."""
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError):
        for i in range(batch.num_rows):
            yield _row(batch.slice(i, 1))


def _row(batch: Any) -> dict[str, Any] | RowError:
    for name in batch.schema.names:
        try:
            batch.column(name).to_pylist()
        except UnicodeDecodeError as e:
            found = f"byte 0x{e.object[e.start]:02x} at {e.start + 1}"
            return RowError("the text is not UTF-8", code=codes.BAD_UTF8, where=f"$.{name}", found=found)
        except (ValueError, OverflowError) as e:
            return RowError("the value is out of range", code=codes.BAD_VALUE, where=f"$.{name}", found=str(e))
    row: dict[str, Any] = batch.to_pylist()[0]
    return row


def _present(value: Any) -> Any:
    """Without the fields that are null."""
    if isinstance(value, dict):
        return {k: _present(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_present(v) for v in value]
    return value


def _text(row: dict[str, Any], nested: bool, limit: int) -> bytes | RowError:
    present = _present(row) if nested else {k: v for k, v in row.items() if v is not None}
    text = json.dumps(present, ensure_ascii=False, default=_plain).encode()
    return too_long(limit) if len(text) > limit else text


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return value.isoformat() if isinstance(value, date | time) else str(value)
