"""What every layer of one forward pass shares: rotary tables, who may see whom, the cache. No weights here.

Letters: B batch, S new positions, K cached and new positions, d head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore.api import ops
from erniecore.api.model import Cache
from erniecore_ernie45.submodel import Submodel


@dataclass(frozen=True, slots=True)
class Context:
    """Inputs that all layers share.

    Attributes:
        cos, sin: float32 [B, S, d/2].
        startend_row_indices: int32 [B, 1, S, 1] or None; the first row that no longer sees each column.
        attention_mask: [B, K] or None; 1 marks keys that may be seen.
        cache: keys and values of past positions, or None.
        real: bool [B, S], false at padding; None when nothing tells padding apart.
        recompute: "none", "full", "attention" or "core-attention".
        halves: whether columns i and i + d/2 are a rotary pair, instead of 2i and 2i + 1.
        submodel: the part of the model that runs; None: all of it.
    """

    cos: Tensor
    sin: Tensor
    startend_row_indices: Tensor | None = None
    attention_mask: Tensor | None = None
    cache: Cache | None = None
    real: Tensor | None = None
    recompute: str = "none"
    halves: bool = False
    submodel: Submodel | None = None


def make_context(
    input_ids: Tensor,
    *,
    head_dim: int,
    theta: float,
    position_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    startend_row_indices: Tensor | None = None,
    cache: Cache | None = None,
    recompute: str = "none",
) -> Context:
    """Fills in what the caller left out.

    Positions default to 0, 1, 2, … in every row, going on where a cache ends. Positions that restart inside a row mean
    that the row packs several sequences: unless a mask or end rows say otherwise, each is isolated from the others.
    """
    batch, length = input_ids.shape
    past = 0 if cache is None else cache.length
    if past and startend_row_indices is not None:
        raise ValueError("startend_row_indices describe a whole row; they cannot be combined with a filled cache")
    if position_ids is None:
        position_ids = paddle.arange(past, past + length, dtype="int64").unsqueeze(0).expand([batch, length])
    elif cache is None and attention_mask is None and startend_row_indices is None:
        startend_row_indices = end_rows_of_restarts(position_ids)
    cos, sin = ops.rope_tables(position_ids, head_dim, theta)
    real = real_positions(length, attention_mask, startend_row_indices)
    return Context(cos, sin, startend_row_indices, attention_mask, cache, real, recompute)


def real_positions(length: int, attention_mask: Tensor | None, startend_row_indices: Tensor | None) -> Tensor | None:
    """bool [B, S], false at padding. A padding column of a packed row ends at its own row, so that nobody sees it."""
    if attention_mask is not None:
        return attention_mask[:, -length:].astype("bool")
    if startend_row_indices is not None:
        ends_BS = startend_row_indices[:, 0, :, 0]
        return ends_BS > paddle.arange(length, dtype=ends_BS.dtype)
    return None


def end_rows_of_restarts(position_ids: Tensor) -> Tensor:
    """End rows int32 [B, 1, S, 1] of packed sequences: a new one starts where positions [B, S] do not increase."""
    batch, length = position_ids.shape
    rows_S = paddle.arange(length, dtype="int64")
    restarts = position_ids[:, 1:] <= position_ids[:, :-1]
    starts = paddle.where(restarts, rows_S[1:].expand_as(restarts), paddle.full_like(restarts, length, dtype="int64"))
    starts_BS = paddle.concat([starts, paddle.full([batch, 1], length, dtype="int64")], axis=1)
    # Column j ends at the next start to its right: a running minimum from the right.
    ends_BS = paddle.cummin(starts_BS.flip([1]), axis=1)[0].flip([1])
    return ends_BS.astype("int32").reshape([batch, 1, length, 1])
