"""Conversations to training samples: what the model reads, and which tokens it learns.

The prompt of every learned turn has exactly the tokens that the model gets in use. Where one sequence keeps this promise
for all of them, it is one sample; where it does not (templates that drop the reasoning of earlier turns), every learned
turn is a sample of its own. No paddle; works with any ``ChatTemplate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from erniecore_text import EncodedCompletion, TurnEncoder, shortened

from erniecore.api import Json, RowError
from erniecore.api.data import Conversation, Message
from erniecore.api.method import Record, Sample, Tokenizer

NO_TARGETS, TOO_LONG = "ERN-D043", "ERN-D044"
#: why a row gave fewer samples than it has learned turns
SOME_TURNS = "a turn too long left out"


class SftEncoder:
    """See ``erniecore.api.Encoder``.

    Args:
        tokenizer: with a chat template. max_length: tokens of a sample at most.

    Raises:
        EnvironmentFault: the tokenizer has no chat template, or lacks the template's end tokens.
    """

    accepts: tuple[type, ...] = (Conversation,)

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self.turns, self.max_length = TurnEncoder(tokenizer), max_length

    def encode(self, record: Record) -> Sequence[Sample]:
        """One sample, or one per learned turn; raises ``RowError`` when none of them fits or nothing is learned."""
        assert isinstance(record, Conversation)
        targets = self.turns.target_turns(record.messages)
        if not targets:
            raise RowError(
                "no turn is a target of the loss", code=NO_TARGETS, where="$", expected="an assistant turn with label 1"
            )
        completion = self.turns.encode_turns(record.messages, record.tools, "$.messages")
        if completion is None:
            return self._by_turn(record, targets)
        return [replace(self._fitting(completion, record.messages, record.tools), origin=record.origin)]

    def _by_turn(self, record: Conversation, targets: Sequence[int]) -> list[Sample]:
        """Each learned turn as a completion to what the model is given in use."""
        samples: list[Sample] = []
        too_long: RowError | None = None
        for turn in targets:
            messages = [*(replace(m, learn=False) for m in record.messages[:turn]), record.messages[turn]]
            try:
                completion = self.turns.encode_turns(messages, record.tools, "$.messages")
                assert completion is not None  # one turn
                samples.append(replace(self._fitting(completion, messages, record.tools), origin=record.origin))
            except RowError as e:
                if e.code != TOO_LONG:
                    raise
                too_long = e
        if too_long is not None:
            if not samples:
                raise too_long
            samples[0] = replace(samples[0], truncated=samples[0].truncated or SOME_TURNS)
        return samples

    def _fitting(self, whole: EncodedCompletion, messages: Sequence[Message], tools: Sequence[Json]) -> Sample:
        """The sample, shortened by whole turns from the left until it fits. ``whole``: all ``messages``."""
        size = 0
        for left, why in shortened(messages):
            if not self.turns.target_turns(left):
                break
            completion = self.turns.encode_turns(left, tools, "$.messages", len(left) - len(messages)) if why else whole
            size = completion.size if completion is not None else size
            if completion is not None and size <= self.max_length:
                return self._sample(completion, why)
        raise RowError(
            "the last turn alone is too long",
            code=TOO_LONG,
            where="$",
            found=f"{size} tokens",
            expected=f"at most {self.max_length} (data.max_seq_len)",
            fix="raise data.max_seq_len, or split the row",
        )

    def _sample(self, completion: EncodedCompletion, truncated: str) -> Sample:
        input_ids, labels = self.turns.arrays(completion)
        n = len(input_ids)
        return Sample(
            input_ids=input_ids,
            labels=labels,
            position_ids=np.arange(n, dtype=np.int64),
            end_rows=np.full(n, n, np.int32),
            truncated=truncated,
        )
