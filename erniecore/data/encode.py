"""From data sources to datasets: read, parse, encode, and account for every row.

Work goes in chunks of rows, each of which is a pure function of its bytes; with ``workers`` they are done by other
processes (started afresh, so nothing is inherited) and joined in order: the result is the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from erniecore import codes
from erniecore.data.dataset import ArrayDataset, DatasetBuilder, TokenizedDataset, concatenate
from erniecore.data.decoding import decode_row
from erniecore.data.opening import LIMITS, RawRow, ReadLimits
from erniecore.data.patches import BoundedEncoder
from erniecore.data.row_statistics import MAX_ERRORS, RowStatistics
from erniecore.data.sources import DataSource
from erniecore.errors import ConfigError, DataError, ErnieError, PluginBroken, RowError, UsageError
from erniecore.host import Host
from erniecore.libraries import library
from erniecore.sections import Section
from erniecore.types.records import Origin, Record, messages_of
from erniecore.types.samples import Encoder, Sample, expecting, media_reader
from erniecore.types.text import Tokenizer

#: A chunk ends with the row that reaches one of these.
_CHUNK_ROWS, _CHUNK_BYTES = 512, 1 << 20
#: rows of which an encoder hears before it gets them
_ROWS_AHEAD = 8


@dataclass(frozen=True)
class Job:
    """What a worker needs: the sources' parsers and the encoder. ``encoder`` none: rows are only checked."""

    sources: tuple[DataSource, ...]
    encoder: Encoder | None
    limits: ReadLimits = LIMITS
    max_errors: int = MAX_ERRORS


def build_encoder(
    host: Host, config: Section, tokenizer: Tokenizer, max_length: int, too_long: str, max_patches: int = 0
) -> Encoder:
    """The encoder of the method in ``host``. Raises ``ConfigError`` for a choice of ``data.too_long`` that it does not know, and
    for ``data.max_patches`` where no images are read."""
    hook = host.hook.ernie_build_encoder
    if too_long != "auto" and not any("too_long" in found.argnames for found in hook.get_hookimpls()):
        raise ConfigError.at("data.too_long", f"the method shortens rows in its own way: use auto (got {too_long})")
    encoder: Encoder = hook(config=config, tokenizer=tokenizer, max_length=max_length, too_long=too_long)
    return BoundedEncoder(encoder, max_patches) if max_patches else encoder


class Chunk(NamedTuple):
    """Rows of one source that are encoded together; ``group``: passed on with the result."""

    source: int
    first_row: int
    rows: list[RawRow]
    group: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Cached:
    """Samples from a token cache, the statistics of their rows, the contents of the files, and what the cache did."""

    dataset: TokenizedDataset
    statistics: RowStatistics
    contents: tuple[dict[str, Any], ...]
    report: dict[str, Any]


Result = tuple[tuple[int, int], ArrayDataset, RowStatistics]
#: does work elsewhere: ``(work, shared, items)`` -> ``work(shared, item)`` of every item, in order. All of them are pickled
Pool: TypeAlias = Callable[[Callable[[Any, Any], Any], Any, Iterable[Any]], Iterator[Any]]
#: what encodes: processes of this machine, 0: this process; or a pool of other machines
Workers: TypeAlias = int | Pool
#: encodes rows on a Ray cluster; another distribution
_RAY = "erniecore_ray.rows"


def workers_of(processes: int, ray: str) -> int | Pool:
    """So many processes of this machine or, with the address of a Ray cluster, what encodes there.

    Raises:
        UsageError: both. PluginNotFound: the distribution for Ray is not installed.
    """
    if not ray:
        return processes
    if processes:
        raise UsageError(
            "rows are encoded by processes or by Ray", where="--workers and --ray", fix="leave one of them out"
        )
    pool: Pool = library(_RAY, "--ray").RayPool(ray)
    return pool


def encode(
    sources: Sequence[DataSource],
    encoder: Encoder | None,
    *,
    workers: Workers = 0,
    limits: ReadLimits = LIMITS,
    max_errors: int = MAX_ERRORS,
) -> tuple[ArrayDataset, RowStatistics]:
    """All samples of ``sources`` in order, and the statistics of all rows; raises nothing about single rows or files.

    With ``workers`` the calling script needs the usual ``if __name__ == "__main__"`` guard.

    Raises:
        PluginBroken: a format or method raised something unexpected.
    """
    statistics = RowStatistics(max_errors)
    datasets = list(encode_in_order(sources, encoder, statistics, workers=workers, limits=limits))
    return concatenate(datasets, [s.file for s in sources]), statistics


def encode_in_order(
    sources: Sequence[DataSource],
    encoder: Encoder | None,
    statistics: RowStatistics,
    *,
    workers: Workers = 0,
    limits: ReadLimits = LIMITS,
) -> Iterator[ArrayDataset]:
    """The samples of ``sources`` a chunk of rows at a time, in order; what becomes of rows is added to ``statistics``."""
    job = Job(tuple(sources), encoder, limits, statistics.max_errors)
    for _, dataset, part in run(job, _all_chunks(job, statistics), workers):
        statistics.merge([part])
        yield dataset


def _all_chunks(job: Job, statistics: RowStatistics) -> Iterator[Chunk]:
    row = 0
    for number, source in enumerate(job.sources):
        source.announce(statistics)
        row = yield from source_chunks(job, number, statistics, row)


def source_chunks(job: Job, number: int, statistics: RowStatistics, row: int = 0) -> Generator[Chunk, None, int]:
    """Rows of one source in order, counted from ``row``; returns the number behind the last. What is wrong with the file
    as a whole goes to the row statistics."""
    source = job.sources[number]
    rows: list[RawRow] = []
    size = 0
    try:
        for raw in source.parser.split(source.path, job.limits):
            rows.append(raw)
            size += len(raw[1]) if isinstance(raw[1], bytes) else 0
            if len(rows) >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
                yield Chunk(number, row, rows)
                row, rows, size = row + len(rows), [], 0
    except DataError as e:
        statistics.fail(source.file, e)
    if rows:
        yield Chunk(number, row, rows)
    return row + len(rows)


def run(job: Job, chunks: Iterable[Chunk], workers: Workers) -> Iterator[Result]:
    """(group, samples, statistics) of every chunk, in order; the same with any workers."""
    if not isinstance(workers, int):
        return workers(_encode_chunk, job, chunks)
    if workers:
        from erniecore.data.workers import in_processes

        return in_processes(_encode_chunk, job, chunks, workers)
    return (_encode_chunk(job, chunk) for chunk in chunks)


def _encode_chunk(job: Job, chunk: Chunk) -> Result:
    """The pure part: bytes to samples and counts."""
    source = job.sources[chunk.source]
    statistics, builder = RowStatistics(job.max_errors), DatasetBuilder([s.file for s in job.sources])
    statistics.read(source.file, len(chunk.rows))
    for i, (origin, parsed) in enumerate(_parsed(job, chunk)):
        try:
            if isinstance(parsed, Exception):
                raise parsed
            record = parsed
            samples = _samples(job.encoder, record) if job.encoder is not None else ()
        except DataError as e:
            statistics.drop(origin, e)
            continue
        except ErnieError as e:  # not the row's alone, but found at it
            e.where = f"{e.where}, at {origin.place()}" if e.where else origin.place()
            raise
        except Exception as e:
            raise PluginBroken(f"the method failed on a row: {type(e).__name__}: {e}", where=origin.place()) from e
        statistics.keep(source.file, len(samples), next((s.truncated for s in samples if s.truncated), ""))
        for sample in samples:
            builder.add(sample, chunk.first_row + i, chunk.source)
    dataset = builder.finish()
    return chunk.group, replace(dataset, digests=dataset.block_digests()), statistics


def _parsed(job: Job, chunk: Chunk) -> Iterator[tuple[Origin, Record | Exception]]:
    """The records of the rows, or what is wrong with them. The encoder hears of some before it gets them."""
    source, encoder = job.sources[chunk.source], expecting(job.encoder)
    waiting: deque[tuple[Origin, Record | Exception]] = deque()
    for position, raw in chunk.rows:
        origin = Origin(source.file, position)
        try:
            record = parse(source, raw, origin, job.limits)
        except Exception as error:  # told where its turn comes
            waiting.append((origin, error))
        else:
            waiting.append((origin, record))
            if encoder is not None:
                encoder.expect(record)
        if len(waiting) > _ROWS_AHEAD:
            yield waiting.popleft()
    yield from waiting


def parse(source: DataSource, raw: bytes | RowError, origin: Origin, limits: ReadLimits = LIMITS) -> Record:
    """One row as a record. Raises ``RowError``."""
    row = raw if isinstance(raw, RowError) else decode_row(raw, origin.position, limits)
    if isinstance(row, RowError):
        raise row
    return source.parser(row, origin)


def _samples(encoder: Encoder, record: Record) -> Sequence[Sample]:
    if not isinstance(record, encoder.accepts):
        raise RowError(
            "this method does not train on such rows",
            code=codes.WRONG_RECORD,
            where="$",
            found=f"a row of the kind {type(record).__name__}",
            expected=" or ".join(t.__name__ for t in encoder.accepts),
            fix="choose a method for this data, or data for this method",
        )
    media = next((m.media[0] for m in messages_of(record) if m.media), None)
    if media is not None and media_reader(encoder) is None:
        raise RowError(
            "the row has media, and this method or model, with these settings, reads texts",
            code=codes.BAD_VALUE,
            where=media.where,
            found=media.source[:80],
            expected="a text-only row",
            fix="train a model that sees, with a method that reads images (`sft`, `dpo`, …), or leave the media out",
        )
    samples = encoder.encode(record)
    if not samples:
        raise RowError("no token of the row is a target of the loss", code=codes.NO_TARGETS, where="$")
    return samples
