"""Documents of data files to token files: rows are read and tokenized as for a run, in processes, and written in order. The
result does not depend on the number of workers, and memory not on the size of the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from erniecore.api import RowError, counted
from erniecore.api.data import Document, Record, Sample
from erniecore.api.model import Tokenizer
from erniecore.api.rows import DataSource, RowStatistics, Workers, codes, encode_in_order
from erniecore_token_files.writing import TokenFileWriter, smallest_dtype


class WholeDocuments:
    """An encoder whose samples are documents, uncut. ``append_eod``: the end token follows each."""

    accepts: tuple[type, ...] = (Document,)

    def __init__(self, tokenizer: Tokenizer, *, append_eod: bool = True) -> None:
        self.tokenizer, self.append_eod = tokenizer, append_eod

    def encode(self, record: Record) -> Sequence[Sample]:
        """One sample; raises ``RowError`` for a document of whitespace."""
        assert isinstance(record, Document)
        tokens = self.tokenizer.encode(record.text) if record.text.strip() else []
        if not tokens:
            raise RowError("the document has no text", code=codes.NO_TARGETS, where="$")
        ids = np.asarray([*tokens, *([self.tokenizer.eos_id] if self.append_eod else [])], np.int64)
        n = len(ids)
        return [Sample(ids, ids, np.arange(n), np.full(n, n, np.int32), origin=record.origin)]


def build(
    sources: Sequence[DataSource],
    encoder: WholeDocuments,
    prefix: Path,
    *,
    workers: Workers = 0,
    max_drop: float = 0.0,
) -> dict[str, Any]:
    """Write ``PREFIX.bin`` and ``PREFIX.idx``; returns row statistics, documents, tokens, dtype.

    With ``workers`` the calling script needs the usual ``if __name__ == "__main__"`` guard.

    Raises:
        DataError: too many rows are dropped, a file cannot be read, or nothing is left; then nothing is written.
        UsageError: one of the two files exists.
    """
    statistics = RowStatistics()
    vocab_size = encoder.tokenizer.vocab_size
    with TokenFileWriter(prefix, smallest_dtype(vocab_size)) as writer:
        for dataset in encode_in_order(sources, encoder, statistics, workers=workers):
            writer.add(dataset.input_ids, dataset.lengths)
        statistics.check(max_drop)
    return {
        **statistics.as_dict(),
        "documents": writer.num_documents,
        "tokens": writer.num_tokens,
        "dtype": writer.dtype.name,
        "bytes": writer.num_tokens * writer.dtype.itemsize,
        "append_eod": encoder.append_eod,
        "vocab_size": vocab_size,
        "prefix": str(prefix),
    }


def describe(report: dict[str, Any]) -> str:
    """The report on one line."""
    end = ", each with its end token" if report["append_eod"] else ""
    rows, documents = counted(report["rows"], "row"), counted(report["documents"], "document")
    return (
        f"{report['prefix']}.bin, .idx: {rows}, {report['dropped']} dropped; {documents}"
        f"{end}, {counted(report['tokens'], 'token')} ({report['dtype']})"
    )
