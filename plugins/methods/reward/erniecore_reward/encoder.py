"""Records to samples for a reward model: pairs behind one prompt, as preference methods have them, and single completions.
What is learned is not the completion's tokens but what is read at its end. numpy only.

A completion is read at its own end token (``turn_end`` of the chat template), with all of the completion before it: that
position is the only one with a label, the token to stop with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from erniecore_preference.encoder import PairEncoder
from erniecore_text import EncodedCompletion, TurnEncoder

from erniecore.api import Json, RowError
from erniecore.api.data import Message, Preference
from erniecore.api.method import IGNORE, Record, Sample, Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

MISSING, BAD_VALUE, TOO_LONG = "ERN-D030", "ERN-D036", "ERN-D044"


class RewardTurnEncoder(TurnEncoder):
    """Turns whose end token is an input too, and the one position that counts."""

    def encode_completion(
        self, prompt: Sequence[Message], turns: Sequence[Message], tools: Sequence[Json], where: str
    ) -> EncodedCompletion:
        """As ``TurnEncoder.encode_completion``; the token to stop with is added as the one target."""
        completion = super().encode_completion(prompt, turns, tools, where)
        return EncodedCompletion(
            completion.prompt, [*completion.ids, self.stop], [*([False] * len(completion.ids)), True]
        )


class RewardEncoder(PairEncoder):
    """See ``erniecore.api.Encoder`` and ``PairEncoder``.

    Args:
        margin: keep the rows' margins in the field ``margin``, and refuse rows without one.
    """

    cuts_completions = False  # they are read at their ends

    def __init__(self, tokenizer: Tokenizer, max_length: int, *, margin: bool = False, too_long: str = "turns") -> None:
        super().__init__(tokenizer, max_length, too_long=too_long)
        self.turns, self.with_margin = RewardTurnEncoder(tokenizer), margin

    def encode(self, record: Record) -> Sequence[Sample]:
        """One sample.

        Raises:
            RowError: as ``PairEncoder``; a margin that is missing or negative.
        """
        assert isinstance(record, Preference)
        if not self.with_margin:
            return super().encode(record)
        margin = _margin(record)
        return [_with(sample, margin=np.full(len(sample), margin, np.float32)) for sample in super().encode(record)]


def _with(sample: Sample, **fields: NDArray[np.generic]) -> Sample:
    return replace(sample, fields={**sample.fields, **fields})


def _margin(record: Preference) -> float:
    if record.margin is None:
        raise RowError(
            "the row has no margin",
            code=MISSING,
            where="$.margin",
            expected="a number, 0 or more, because method.margin_weight is not 0",
            fix="add `margin`, or set method.margin_weight=0",
        )
    if not 0 <= record.margin < np.inf:
        raise RowError(
            "the margin is no usable number",
            code=BAD_VALUE,
            where="$.margin",
            found=f"{record.margin}",
            expected="0 or more",
        )
    return record.margin


def encode_completion(
    turns: RewardTurnEncoder, prompt: Sequence[Message], turn: Message, tools: Sequence[Json] = ()
) -> list[int]:
    """Ids that are read to judge ``turn`` behind ``prompt``, its end token last; nothing is shortened.

    Raises:
        RowError: what ``TurnEncoder.encode_completion`` refuses.
    """
    completion = turns.encode_completion(prompt, [turn], tools, "$.messages")
    return [*completion.prompt, *completion.ids][:-1]


def read_sample(ids: Sequence[int], media: tuple[str, ...]) -> Sample:
    """Ids that are read and not learned, with their images, as a ``MediaReader`` takes them."""
    n = len(ids)
    array = np.array(ids, np.int64)
    return Sample(array, np.full(n, IGNORE, np.int64), np.arange(n), np.full(n, n, np.int32), media=media)
