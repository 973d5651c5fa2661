"""Conversations to samples: assistant turns are learned, everything else is read. numpy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from erniecore.api import EnvironmentFault, RowError
from erniecore.api.data import Conversation
from erniecore.api.method import IGNORE, Record, Sample, Tokenizer


class FocalEncoder:
    """See ``erniecore.api.Encoder``.

    Raises:
        EnvironmentFault: the tokenizer has no chat template.
    """

    accepts: tuple[type, ...] = (Conversation,)

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        if tokenizer.chat_template is None:
            raise EnvironmentFault("the tokenizer has no chat template", fix="add chat_template.jinja to the model")
        self.tokenizer, self.template, self.max_length = tokenizer, tokenizer.chat_template, max_length

    def encode(self, record: Record) -> Sequence[Sample]:
        """One sample; raises ``RowError`` when it is too long or nothing of it is learned."""
        assert isinstance(record, Conversation)
        segments = self.template.segments(record.messages, record.tools)
        pieces = self.tokenizer.encode_segments(segments)
        learn = [s.generated and s.message >= 0 and record.messages[s.message].learn for s in segments]
        ids = np.array([i for piece in pieces for i in piece], dtype=np.int64)
        learned = np.repeat(learn, [len(piece) for piece in pieces])
        # inside a conversation a turn ends with one token, but what the model learns is to stop
        end = self.tokenizer.special_tokens[self.template.turn_end]
        stop = self.tokenizer.special_tokens[self.template.stop]
        labels = np.where(learned, np.where(ids == end, stop, ids), IGNORE)[1:]
        n = len(labels)
        if n > self.max_length:
            raise RowError(f"{n} tokens do not fit into {self.max_length}", where="$")
        if not (labels != IGNORE).any():
            raise RowError("no turn is a target of the loss", where="$")
        ends = np.full(n, n, dtype=np.int32)
        return [Sample(ids[:-1], labels, np.arange(n, dtype=np.int64), ends, origin=record.origin)]
