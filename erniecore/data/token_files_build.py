"""Documents of data files to indexed token files: rows are read and tokenised as for a run (``encode.py``), in processes,
and written in order. The result does not depend on the number of workers, and memory not on the size of the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from erniecore.data import codes
from erniecore.data.encode import Chunk, Job, run, source_chunks
from erniecore.data.ledger import Ledger
from erniecore.data.sources import DataSource
from erniecore.data.token_files_write import TokenFileWriter, smallest_dtype
from erniecore.errors import RowError
from erniecore.types import Document, Record, Sample, Tokenizer


class WholeDocuments:
    """An encoder whose samples are documents, uncut. ``append_eod``: the end token follows each."""

    accepts: tuple[type, ...] = (Document,)

    def __init__(self, tokenizer: Tokenizer, *, append_eod: bool = True) -> None:
        self.tokenizer, self.append_eod = tokenizer, append_eod

    def encode(self, record: Record) -> Sequence[Sample]:
        """One sample; raises ``RowError`` for a blank document."""
        assert isinstance(record, Document)
        tokens = self.tokenizer.encode(record.text) if record.text.strip() else []
        if not tokens:
            raise RowError("the document has no text", code=codes.NOTHING_LEARNED, where="$")
        ids = np.asarray([*tokens, *([self.tokenizer.eos_id] if self.append_eod else [])], np.int64)
        n = len(ids)
        return [Sample(ids, ids, np.arange(n), np.full(n, n, np.int32), origin=record.origin)]


def build(
    sources: Sequence[DataSource],
    encoder: WholeDocuments,
    prefix: Path,
    *,
    workers: int = 0,
    max_drop: float = 0.0,
) -> dict[str, Any]:
    """Write ``PREFIX.bin`` and ``PREFIX.idx``; returns the account: rows as in a ledger, documents, tokens, dtype.

    With ``workers`` the calling script needs the usual ``if __name__ == "__main__"`` guard.

    Raises:
        DataError: too many rows are dropped, a file cannot be read, or nothing is left; then nothing is written.
        UsageError: one of the two files exists.
    """
    job, ledger = Job(tuple(sources), encoder), Ledger()
    vocab_size = encoder.tokenizer.vocab_size
    with TokenFileWriter(prefix, smallest_dtype(vocab_size)) as writer:
        for _, store, part in run(job, _chunks(job, ledger), workers):
            writer.add(store.input_ids, store.lengths)
            ledger.merge([part])
        ledger.check(max_drop)
    return {
        **ledger.as_dict(),
        "documents": writer.num_documents,
        "tokens": writer.num_tokens,
        "dtype": writer.dtype.name,
        "bytes": writer.num_tokens * writer.dtype.itemsize,
        "append_eod": encoder.append_eod,
        "vocab_size": vocab_size,
        "prefix": str(prefix),
    }


def _chunks(job: Job, ledger: Ledger) -> Iterator[Chunk]:
    for number, source in enumerate(job.sources):
        ledger.file(source.file).format = source.parser.name
        yield from source_chunks(job, number, ledger)


def describe(report: dict[str, Any]) -> str:
    """The account on one line."""
    end = ", each with its end token" if report["append_eod"] else ""
    return (
        f"{report['prefix']}.bin, .idx: {report['rows']} rows, {report['dropped']} dropped; {report['documents']} documents"
        f"{end}, {report['tokens']} tokens ({report['dtype']})"
    )
