"""Documents to samples behind the prompt of all their attributes; which of them a step learns with, ``dropping.py`` decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from erniecore_pretrain.encoder import NO_TARGETS

from erniecore.api import RowError
from erniecore.api.data import Document
from erniecore.api.method import IGNORE, Record, Sample, Tokenizer
from erniecore_controllable.prompt import parts_of
from erniecore_controllable.rows import AttributedDocument, Attributes


class ControllableEncoder:
    """See ``erniecore.api.Encoder``. The text and the end token are learned, the prompt is not. A text that does not fit behind
    its prompt is cut, and then has no end token.

    Args:
        max_length: tokens of a sample at most. genres: as in the settings.
    """

    accepts: tuple[type, ...] = (Document,)

    def __init__(self, tokenizer: Tokenizer, max_length: int, genres: Mapping[str, int]) -> None:
        self.tokenizer, self.max_length, self.genres = tokenizer, max_length, genres

    def encode(self, record: Record) -> Sequence[Sample]:
        """One sample; raises ``RowError`` for an empty text, an unknown genre, and a prompt that leaves no room."""
        assert isinstance(record, Document)
        if not record.text.strip():
            raise RowError("the document has no text", code=NO_TARGETS, where="$")
        known = record.attributes if isinstance(record, AttributedDocument) else Attributes()
        parts = parts_of(self.tokenizer, self.genres, replace(known, words=len(record.text.split())))
        prompt = [self.tokenizer.bos_id, *(i for part in parts for i in part.ids)]
        attribute = [0, *(part.attribute for part in parts for _ in part.ids)]
        room = self.max_length - len(prompt)
        if room < 1:
            found, expected = f"{len(prompt)} tokens", f"fewer than data.max_seq_len ({self.max_length})"
            raise RowError("the attributes leave no room", code="ERN-D044", where="$", found=found, expected=expected)
        text = self.tokenizer.encode(record.text)
        targets = [*text, self.tokenizer.eos_id][: room + 1]
        n = len(prompt) + len(targets) - 1
        return [
            Sample(
                input_ids=np.array([*prompt, *targets[:-1]], np.int64),
                labels=np.array([*[IGNORE] * (len(prompt) - 1), *targets], np.int64),
                position_ids=np.arange(n, dtype=np.int64),
                end_rows=np.full(n, n, np.int32),
                fields={"attribute": np.array([*attribute, *[0] * (len(targets) - 1)], np.int8)},
                truncated="" if len(text) + 1 == len(targets) else "the text was cut behind its attributes",
                origin=record.origin,
            )
        ]
