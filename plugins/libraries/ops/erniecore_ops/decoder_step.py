"""One fused forward pass of a decoder over a few new tokens per row. There is no reference in Paddle here: that is the
model's own forward pass, which runs where there is no kernel.

Letters: b rows, w new columns, K columns of the cache with the new ones, n logits wanted, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from erniecore_ops.kernels import replaceable

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NewTokens:
    """Inputs and buffers of one decoding step.

    Attributes:
        ids, positions: int64 [b, w]. mask: [b, K], 0 masks a column; None: nothing is masked.
        keys, values: per layer, float32 [b, capacity, heads, d]; columns K - w .. K are written.
        start: K - w. places: int64 [n], tokens (row * w + column) whose logits are wanted.
        residual: float32 [b, w, H], to be filled with the hidden states before the final norm; or None.
    """

    ids: Ints
    positions: Ints
    mask: NDArray[Any] | None
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    start: int
    places: Ints
    residual: Tensor | None = None


if TYPE_CHECKING:
    from erniecore.types.decoder import DecoderPlan


class DecoderStep(Protocol):
    """A decoder that a kernel is ready to run."""

    def takes(self, rows: int, columns: int) -> bool:
        """Whether the kernel supports ``columns`` new tokens for each of ``rows``; long prompts are not supported."""
        ...

    def run(self, tokens: NewTokens) -> NDArray[np.float32]:
        """Logits [n, V], with the current values of the parameters. Raises ``ValueError`` for a token id outside V."""
        ...


@replaceable
def decoder_step(plan: DecoderPlan) -> DecoderStep | None:
    """A kernel for ``plan``; None: there is none, and the model runs its own forward pass."""
    return None
