"""Queries and keys of the attention of a model, for methods that compare attention between models: whoever asks sees what
:func:`erniecore_ops.attention` is called with, and nothing is computed otherwise than without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from paddle import Tensor


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """What one call of ``attention`` computes its probabilities from, as its arguments are.

    Attributes:
        q: [B, S, hq, d]. k: [B, K, hk, d]. startend_row_indices, attention_mask: or None. scale: of q k^T.
    """

    q: Tensor
    k: Tensor
    startend_row_indices: Tensor | None
    attention_mask: Tensor | None
    scale: float


_calls: ContextVar[list[AttentionInputs] | None] = ContextVar("attention_calls", default=None)


@contextmanager
def attention_inputs() -> Iterator[list[AttentionInputs]]:
    """Within the block the list has what the last call of ``attention`` got; it is replaced by the next one, so that no more
    than one is kept. Blocks may be nested; the innermost one sees the call. Decoding with a cache may go other ways."""
    calls: list[AttentionInputs] = []
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


def note(
    q: Tensor, k: Tensor, startend_row_indices: Tensor | None, attention_mask: Tensor | None, scale: float
) -> None:
    """What ``attention`` tells of each call; costs nothing where nobody asks."""
    calls = _calls.get()
    if calls is not None:
        calls[:] = [AttentionInputs(q, k, startend_row_indices, attention_mask, scale)]
