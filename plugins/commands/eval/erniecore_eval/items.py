"""Rows of data files as evaluation items: parsed, encoded by the method, grouped by a field of the row. No paddle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from erniecore.api import DataError, Json, RowError, shorten
from erniecore.api.command import did_you_mean
from erniecore.api.data import media_reader, messages_of
from erniecore.api.method import Encoder, Origin
from erniecore.api.rows import DataSource, RowStatistics, Source, decode_row, describe, resolve
from erniecore_eval.suites import Item

#: rows are grouped by this field when they have it and nobody names another
TASK = "task"


def read_items(
    sources: Sequence[Source],
    encoder: Encoder,
    *,
    default_format: str = "auto",
    group_by: str = "",
    limit: int = 0,
    seed: int = 0,
) -> tuple[list[Item], RowStatistics]:
    """Items in file order, and the statistics of all rows that were read.

    Args:
        encoder: the method's; rows that it cannot encode are dropped and counted.
        group_by: field of the rows; empty: ``task`` where rows have it.
        limit: evaluate at most this many rows, sampled with ``seed``; 0: all.

    Raises:
        DataError: a file cannot be used, no row has the field ``group_by``, or every row was dropped.
    """
    rows = [entry for source in resolve(sources, default_format) for entry in _rows(source)]
    if limit and limit < len(rows):
        rows = [rows[i] for i in sorted(Random(seed).sample(range(len(rows)), limit))]
    if group_by:
        _check_field(rows, group_by)
    statistics, items = RowStatistics(), []
    for source, origin, row in rows:
        source.announce(statistics)
        statistics.read(source.file, 1)
        try:
            item = _item(source, origin, row, encoder, group_by or TASK)
        except DataError as error:
            statistics.drop(origin, error)
            continue
        statistics.keep(source.file, len(item.samples), next((s.truncated for s in item.samples if s.truncated), ""))
        items.append(item)
    if not items:
        raise DataError(
            "no row can be evaluated",
            where=", ".join(s.path for s in sources),
            found="; the first: ".join([statistics.summary(), *map(describe, statistics.errors[:1])]),
            next=f"ernie data check {sources[0].path}",
        )
    return items, statistics


_Row = tuple[DataSource, Origin, "Json | RowError"]


def _rows(source: DataSource) -> Iterator[_Row]:
    for position, raw in source.parser.split(source.path):
        yield source, Origin(source.file, position), raw if isinstance(raw, RowError) else decode_row(raw, position)


def _item(source: DataSource, origin: Origin, row: Json | RowError, encoder: Encoder, field: str) -> Item:
    if isinstance(row, RowError):
        raise row
    record = source.parser(row, origin)
    if not isinstance(record, encoder.accepts):
        kinds = " or ".join(t.__name__ for t in encoder.accepts)
        raise RowError("the method cannot evaluate such a row", where="$", found=type(record).__name__, expected=kinds)
    samples = tuple(encoder.encode(record))
    media = [media for message in messages_of(record) for media in message.media]
    if media and (media_reader(encoder) is None or not any(sample.media for sample in samples)):
        found, fix = media[0].source[:80], "leave the row out, or name a model that sees"
        raise RowError("images are not evaluated", where=media[0].where, found=found, expected="a row of text", fix=fix)
    if not samples:
        raise RowError("the row has no loss tokens", where="$")
    value = row.get(field)
    return Item("" if value is None else str(value), record, samples)


def _check_field(rows: Sequence[_Row], field: str) -> None:
    readable = [row for _, _, row in rows if not isinstance(row, RowError)]
    if any(field in row for row in readable):
        return
    keys = sorted({key for row in readable[:100] for key in row})
    raise DataError(
        "no row has the field to group by",
        where="--group-by",
        found=shorten(field),
        expected=", ".join(keys[:10]),
        fix=did_you_mean(field, keys, "name a field of the rows"),
    )
