"""Documents to training samples: tokens and the end token, cut into pieces that neither overlap nor leave a gap. No
paddle; nothing is rendered, so the tokenizer needs no chat template.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from erniecore.api import RowError
from erniecore.api.data import Document
from erniecore.api.method import IGNORE, Record, Sample, Tokenizer

NO_TARGETS = "ERN-D043"


class PretrainEncoder:
    """See ``erniecore.api.Encoder``.

    Of a document t₁ … tₙ, with e the end token, the pairs (t₁, t₂) … (tₙ, e) are learned, each once: piece i reads the
    tokens i·m … (i+1)·m − 1, and its last label is the first token of piece i + 1.

    Args:
        tokenizer: its ``eos_id`` is the end token. max_length: m, tokens of a piece at most.
        keep_end: the end token is also read, for rows that are one causal text; it predicts nothing here.
    """

    accepts: tuple[type, ...] = (Document,)

    def __init__(self, tokenizer: Tokenizer, max_length: int, *, keep_end: bool = False) -> None:
        self.tokenizer, self.max_length, self.keep_end = tokenizer, max_length, keep_end

    def encode(self, record: Record) -> Sequence[Sample]:
        """The pieces of one document in order; raises ``RowError`` if it is empty."""
        assert isinstance(record, Document)
        if not record.text.strip():
            raise RowError("the document has no text", code=NO_TARGETS, where="$")
        ids = np.asarray([*self.tokenizer.encode(record.text), self.tokenizer.eos_id], np.int64)
        targets = np.append(ids[1:], IGNORE)
        size = len(ids) if self.keep_end else len(ids) - 1
        pieces = [slice(start, min(start + self.max_length, size)) for start in range(0, size, self.max_length)]
        return [_piece(record, ids[piece], targets[piece]) for piece in pieces]


def _piece(record: Document, ids: NDArray[np.int64], labels: NDArray[np.int64]) -> Sample:
    n = len(ids)
    return Sample(
        input_ids=ids,
        labels=labels,
        position_ids=np.arange(n, dtype=np.int64),
        end_rows=np.full(n, n, np.int32),
        origin=record.origin,
    )
