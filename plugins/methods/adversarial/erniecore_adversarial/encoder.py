"""Documents to samples that end with a marker, at whose place they are judged. numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from erniecore_pretrain.encoder import NO_TARGETS

from erniecore.api import RowError
from erniecore.api.data import Document
from erniecore.api.method import IGNORE, Record, Sample, Tokenizer
from erniecore_adversarial.rows import GeneratedDocument

#: values of the field ``judged``
NATURAL, GENERATED = 1, 2


class AdversarialEncoder:
    """See ``erniecore.api.Encoder``.

    Of a document t₁ … tₙ each piece of at most ``max_length`` - 1 tokens becomes a sample, with the end token e behind it as the
    marker: the position from which the model judges all of the piece. Its label is e, and no likelihood is learned there. Natural
    text also has its next tokens as labels, e after the last one; generated text has none.

    Args:
        tokenizer: its ``eos_id`` is the marker. max_length: tokens of a sample at most, the marker included.
    """

    accepts: tuple[type, ...] = (Document,)

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length

    def encode(self, record: Record) -> Sequence[Sample]:
        """The pieces of one document in order; raises ``RowError`` if it is empty."""
        assert isinstance(record, Document)
        if not record.text.strip():
            raise RowError("the document has no text", code=NO_TARGETS, where="$")
        generated = isinstance(record, GeneratedDocument)
        ids = np.asarray([*self.tokenizer.encode(record.text), self.tokenizer.eos_id], np.int64)
        size = self.max_length - 1
        starts = range(0, len(ids) - 1, size)
        cut = f"cut into {len(starts)} texts, each judged by itself" if len(starts) > 1 else ""
        return [replace(self._sample(record, ids, start, size, generated), truncated=cut) for start in starts]

    def _sample(self, record: Document, ids: np.ndarray, start: int, size: int, generated: bool) -> Sample:
        stop, marker = min(start + size, len(ids) - 1), self.tokenizer.eos_id
        n = stop - start + 1
        labels = np.full(n, IGNORE, np.int64)
        labels[-1] = marker
        if not generated:
            labels[:-1] = ids[start + 1 : stop + 1]
        judged = np.zeros(n, np.int8)
        judged[-1] = GENERATED if generated else NATURAL
        return Sample(
            input_ids=np.append(ids[start:stop], marker),
            labels=labels,
            position_ids=np.arange(n, dtype=np.int64),
            end_rows=np.full(n, n, np.int32),
            fields={"judged": judged},
            origin=record.origin,
        )
