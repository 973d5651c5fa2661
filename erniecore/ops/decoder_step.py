"""A whole pass of a decoder over a few new tokens per row, in one call. There is no reference in Paddle here: that is the
model's own forward pass, which runs where no kernel does.

Letters: b rows, w new columns, K columns of the cache with the new ones, n logits wanted, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from erniecore.kernels import replaceable
from erniecore.types import DecoderPlan

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NewTokens:
    """What a pass computes.

    Attributes:
        ids, positions: int64 [b, w]. mask: [b, K], 0 hides a column; None: all are seen.
        keys, values: per layer, float32 [b, capacity, heads, d]; columns K - w .. K are written.
        start: K - w. places: int64 [n], tokens (row * w + column) whose logits are wanted.
        stream: float32 [b, w, H], to be filled with what the final norm gets; or None.
    """

    ids: Ints
    positions: Ints
    mask: NDArray[Any] | None
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    start: int
    places: Ints
    stream: Tensor | None = None


class DecoderStep(Protocol):
    """A decoder that is ready to run."""

    def takes(self, rows: int, columns: int) -> bool:
        """Whether a pass over ``columns`` new tokens of each of ``rows`` is for it; long prompts are not."""
        ...

    def run(self, tokens: NewTokens) -> NDArray[np.float32]:
        """Logits [n, V]; weights are read where the parameters have them now. Raises ``ValueError`` for an unknown id."""
        ...


@replaceable
def decoder_step(plan: DecoderPlan) -> DecoderStep | None:
    """How a kernel runs ``plan``; None: the model runs itself."""
    return None
