"""Encodes a preference pair as one sample: prompt and chosen completion, then prompt and rejected completion, which
do not attend to each other. The field `completion` numbers them, 1 and 2. numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from erniecore.api import RowError
from erniecore.api.data import Preference
from erniecore.api.method import Record, Sample, Tokenizer
from erniecore_text import TurnEncoder


class AcmeDpoEncoder:
    """Encodes preference pairs; an ``erniecore.api.method.Encoder``."""

    accepts: tuple[type, ...] = (Preference,)

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self.turns, self.max_length = TurnEncoder(tokenizer), max_length

    def encode(self, record: Record) -> Sequence[Sample]:
        """One sample; raises ``RowError`` where it is too long or the completions are the same."""
        assert isinstance(record, Preference)
        completions = [
            self.turns.encode_completion(record.prompt, turns, record.tools, where)
            for turns, where in ((record.chosen, "$.chosen"), (record.rejected, "$.rejected"))
        ]
        if completions[0].ids == completions[1].ids:
            raise RowError("the two completions are the same", where="$.rejected")
        (chosen, good), (rejected, bad) = (self.turns.arrays(completion) for completion in completions)
        C, R = len(chosen), len(rejected)
        if self.max_length < C + R:
            raise RowError(f"{C + R} tokens do not fit into {self.max_length}", where="$")
        return [
            Sample(
                input_ids=np.concatenate([chosen, rejected]),
                labels=np.concatenate([good, bad]),
                position_ids=np.concatenate([np.arange(C), np.arange(R)]).astype(np.int64),
                end_rows=np.repeat([C, C + R], [C, R]).astype(np.int32),
                fields={"completion": np.repeat([1, 2], [C, R]).astype(np.int8)},
                origin=record.origin,
            )
        ]
