"""Documents of data files to indexed token files: read, tokenise in processes, write in order, account for every row.

The result does not depend on the number of workers, and memory not on the size of the files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from erniecore.data import codes
from erniecore.data.encode import parse
from erniecore.data.ledger import Ledger
from erniecore.data.sources import DataSource
from erniecore.data.splitting import RawRow
from erniecore.data.token_files_write import TokenFileWriter, smallest_dtype
from erniecore.errors import DataError, RowError
from erniecore.types import Document, Origin, Tokenizer

if TYPE_CHECKING:
    from erniecore.types.samples import IntArray

#: a chunk ends with the row that reaches one of these; chunks that wait per worker
_CHUNK_ROWS, _CHUNK_BYTES, _AHEAD = 512, 1 << 20, 4


@dataclass(frozen=True)
class Job:
    """What a worker needs. ``append_eod``: the tokenizer's end token follows every document."""

    sources: tuple[DataSource, ...]
    tokenizer: Tokenizer
    append_eod: bool = True


class _Chunk(NamedTuple):
    source: int
    rows: list[RawRow]


class Tokenised(NamedTuple):
    """Documents one after the other: ids [T], lengths [D], and the account of their rows."""

    ids: IntArray
    lengths: IntArray
    ledger: Ledger


def build(job: Job, prefix: Path, *, workers: int = 0, max_drop: float = 0.0) -> dict[str, Any]:
    """Write ``PREFIX.bin`` and ``PREFIX.idx``; returns the account: rows as in a ledger, documents, tokens, dtype.

    With ``workers`` the calling script needs the usual ``if __name__ == "__main__"`` guard.

    Raises:
        DataError: too many rows are dropped, a file cannot be read, or nothing is left; then nothing is written.
        UsageError: one of the two files exists.
    """
    ledger = Ledger()
    for source in job.sources:
        ledger.file(source.file).format = source.parser.name
    with TokenFileWriter(prefix, smallest_dtype(job.tokenizer.vocab_size)) as writer:
        for part in _results(job, _chunks(job, ledger), workers):
            writer.add(part.ids, part.lengths)
            ledger.merge([part.ledger])
        ledger.check(max_drop)
    return {
        **ledger.as_dict(),
        "documents": writer.num_documents,
        "tokens": writer.num_tokens,
        "dtype": writer.dtype.name,
        "bytes": writer.num_tokens * writer.dtype.itemsize,
        "append_eod": job.append_eod,
        "vocab_size": job.tokenizer.vocab_size,
        "prefix": str(prefix),
    }


def _chunks(job: Job, ledger: Ledger) -> Iterator[_Chunk]:
    """Rows of all sources in order; what is wrong with a whole file goes to the ledger."""
    for number, source in enumerate(job.sources):
        rows: list[RawRow] = []
        size = 0
        try:
            for row in source.parser.split(source.path):
                rows.append(row)
                size += len(row[1]) if isinstance(row[1], bytes) else 0
                if len(rows) >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
                    yield _Chunk(number, rows)
                    rows, size = [], 0
        except DataError as error:
            ledger.fail(source.file, error)
        if rows:
            yield _Chunk(number, rows)


def tokenised(job: Job, chunk: _Chunk) -> Tokenised:
    """The pure part: rows to ids and counts."""
    source, ledger = job.sources[chunk.source], Ledger()
    ledger.read(source.file, len(chunk.rows))
    end = [job.tokenizer.eos_id] if job.append_eod else []
    ids: list[int] = []
    lengths: list[int] = []
    for line, raw in chunk.rows:
        try:
            document = [*_tokens(job, source, raw, Origin(source.file, line)), *end]
        except DataError as error:
            ledger.drop(Origin(source.file, line), error)
            continue
        ids += document
        lengths.append(len(document))
        ledger.keep(source.file)
    return Tokenised(np.asarray(ids, np.int64), np.asarray(lengths, np.int64), ledger)


def _tokens(job: Job, source: DataSource, raw: bytes | RowError, origin: Origin) -> list[int]:
    record = parse(source, raw, origin)
    if not isinstance(record, Document):
        raise RowError(
            "only documents become token files",
            code=codes.WRONG_RECORD,
            where="$",
            found=f"a row of the kind {type(record).__name__}",
            expected="Document",
            fix="choose the format that reads these rows as text: --format text",
        )
    ids = job.tokenizer.encode(record.text) if record.text.strip() else []
    if not ids:
        raise RowError("the document has no text", code=codes.NOTHING_LEARNED, where="$")
    return ids


# ---- workers

_job: Job | None = None


def _start_worker(job: Job) -> None:
    global _job
    _job = job


def _work(chunk: _Chunk) -> Tokenised:
    assert _job is not None
    return tokenised(_job, chunk)


def _results(job: Job, chunks: Iterable[_Chunk], workers: int) -> Iterator[Tokenised]:
    """In the order of the chunks, never more than a few chunks ahead."""
    if not workers:
        yield from (tokenised(job, chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (job,)) as pool:
        waiting: deque[Future[Tokenised]] = deque()
        try:
            for chunk in chunks:
                waiting.append(pool.submit(_work, chunk))
                if len(waiting) >= workers * _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def describe(report: dict[str, Any]) -> str:
    """The account on one line."""
    end = ", each with its end token" if report["append_eod"] else ""
    return (
        f"{report['prefix']}.bin, .idx: {report['rows']} rows, {report['dropped']} dropped; {report['documents']} documents"
        f"{end}, {report['tokens']} tokens ({report['dtype']})"
    )
