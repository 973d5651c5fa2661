"""Causal attention, with grouped key/value heads, packed rows and key masks. Holds no state and no cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from numpy.typing import NDArray
from paddle import Tensor
from paddle.autograd import PyLayer

from erniecore_ops._attention_plan import HIDDEN, Plan, make_plan
from erniecore_ops._frozen import frozen
from erniecore_ops._head_order import heads_first, tokens_first
from erniecore_ops.attention_inputs import note
from erniecore_ops.from_numpy import tensor_of
from erniecore_ops.kernels import in_use, replaceable
from erniecore_ops.matmul import EXACT, num_parts
from erniecore_ops.parallel import parallel_map
from erniecore_ops.shards import sharded_masks

#: Up to this many scores, one product over everything is faster than going block by block.
SMALL = 1 << 16


@dataclass(frozen=True, slots=True)
class Masks:
    """Row indices and key mask of :func:`attention`, either of them None; not differentiated."""

    ends: Tensor | None
    mask: Tensor | None

    def arrays(self, B: int, K: int) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        """Row indices and mask (bool), [B, K] each."""
        ends = None if self.ends is None else self.ends.numpy().reshape(B, K)
        return ends, None if self.mask is None else self.mask.numpy().reshape(B, K) != 0


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    startend_row_indices: Tensor | None = None,
    attention_mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """``softmax(q k^T scale + mask) v``; query row i attends to keys 0 .. i + K - S.

    Blocks of queries are multiplied only with keys that they may attend to; the backward pass recomputes probabilities:
    memory grows with S, not S^2. float32 inside, products with the precision of the process (``matmul``), or float64 for
    float64 input; the result has ``v``'s dtype.

    Args:
        q: [B, S, hq, d]. k, v: [B, K, hk, d] with hq a multiple of hk; head h reads key head h // (hq / hk).
        startend_row_indices: int32 [B, 1, K, 1]; for each key column the first query row that no longer attends to it.
            Those of rows that several ranks share are bound in ``sharded_masks`` to what computes it.
        attention_mask: [B, K], 0 masks a key.
        scale: 1 / sqrt(d) by default.
    Returns:
        [B, S, hq, d]; rows that attend to no key are 0.
    Raises:
        ValueError: ``startend_row_indices`` of another length than K, or hq not a multiple of hk.
    Source: Vaswani et al. (2017); Ainslie et al., "GQA" (2023); Dao, "FlashAttention-2" (2023) for the backward
    pass; Wang et al., "FlashMask" (2024) for the row indices.
    """
    if (shard := sharded_masks.of(startend_row_indices)) is not None:
        shared: Tensor = shard.attention(q, k, v, scale=scale)
        return shared
    (B, S, hq, d), (K, hk) = q.shape, k.shape[1:3]
    if startend_row_indices is not None and startend_row_indices.size != B * K:
        raise ValueError(f"startend_row_indices needs one entry per key, {B} x {K}, not {startend_row_indices.shape}")
    if hq % hk:
        raise ValueError(f"{hq} query heads cannot share {hk} key heads evenly")
    scale = float(d**-0.5) if scale is None else scale
    note(q, k, startend_row_indices, attention_mask, scale)
    if S == 1 and startend_row_indices is None and q.dtype == v.dtype and not paddle.is_grad_enabled():
        return decode_attention(q, k, v, attention_mask, scale)
    dtype = "float64" if q.dtype == paddle.float64 else "float32"
    q32, k32, v32 = q.astype(dtype), k.astype(dtype), v.astype(dtype)
    masks = Masks(startend_row_indices, attention_mask)
    if "attention_forward" not in in_use() and (S == 1 or B * hq * S * K <= SMALL):
        out = _whole(q32, k32, v32, masks, scale)
    elif paddle.is_grad_enabled():
        out = _Attention.apply(q32, k32, v32, masks, scale)
    else:
        out, _ = attention_forward(q32, k32, v32, startend_row_indices, attention_mask, scale, num_parts())
    return out.astype(v.dtype)


@replaceable
def decode_attention(q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None, scale: float) -> Tensor:
    """:func:`attention` of one query position [B, 1, hq, d] on tensors without gradient; every key is attended to but those
    that ``attention_mask`` masks."""
    dtype = "float64" if q.dtype == paddle.float64 else "float32"
    masks = Masks(None, attention_mask)
    return _whole(q.astype(dtype), k.astype(dtype), v.astype(dtype), masks, scale).astype(v.dtype)


def _whole(q: Tensor, k: Tensor, v: Tensor, masks: Masks, scale: float) -> Tensor:
    """All scores at once: decoding steps and short sequences."""
    (B, S, hq, _), (K, hk) = q.shape, k.shape[1:3]
    ends, keep = masks.arrays(B, K)
    q_Nrd, k_NKd, v_NKd = heads_first(q, hk) * scale, heads_first(k, hk), heads_first(v, hk)
    scores = paddle.matmul(q_Nrd, k_NKd, transpose_y=True)
    visible = np.arange(K) <= np.arange(S)[:, None] + (K - S)
    visible_BSK = np.broadcast_to(visible, (B, S, K))
    if ends is not None:
        visible_BSK = visible_BSK & (np.arange(S)[:, None] < ends[:, None, :])
    if keep is not None:
        visible_BSK = visible_BSK & keep[:, None, :]
    if visible_BSK.all():
        weights = F.softmax(scores)
    else:
        visible_NrK = np.repeat(np.repeat(visible_BSK, hk, axis=0), hq // hk, axis=1)
        mask = tensor_of(np.where(visible_NrK, 0.0, HIDDEN).astype(str(scores.dtype).rsplit(".", 1)[-1]))
        seeing = np.asarray(visible_NrK.any(2, keepdims=True))
        weights = F.softmax(scores + mask) * tensor_of(seeing).astype(scores.dtype)
    return tokens_first(paddle.matmul(weights, v_NKd), B, S, hq)


class _Attention(PyLayer):  # type: ignore[misc]
    """Keeps its inputs, its result, and what the implementation wants for the way back."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, masks: Masks, scale: float) -> Tensor:
        given = q.detach(), k.detach(), v.detach(), masks.ends, masks.mask
        out, stats = attention_forward(*given, scale, num_parts())
        ctx.save_for_backward(q, k, v, out, *(() if stats is None else (stats,)))
        ctx.masks, ctx.scale, ctx.frozen = masks, scale, frozen(q, k, v)
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, *stats = (x.detach() for x in ctx.saved_tensor())
        masks: Masks = ctx.masks
        given = q, k, v, out, stats[0] if stats else None, dy.detach(), masks.ends, masks.mask
        found = attention_backward(*given, ctx.scale, num_parts())
        return tuple(None if is_frozen else dx for is_frozen, dx in zip(ctx.frozen, found, strict=True))


@replaceable
def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends: Tensor | None,
    mask: Tensor | None,
    scale: float,
    parts: int = EXACT,
) -> tuple[Tensor, Tensor | None]:
    """(:func:`attention`, what :func:`attention_backward` of the same implementation wants to know) on tensors without
    gradient; here that is nothing, of a kernel log2 of the sum of exponentials of each row, [B, hq, S], at least 1e29 up or
    down for rows that attend to nothing: its backward pass takes sums over more keys too (``partial_attention``). One task
    per sequence and key head; r counts the query rows of one key head, (position, head of the group).

    Args:
        ends: ``startend_row_indices``. mask: ``attention_mask``. parts: how many bfloat16 numbers a kernel may make of each
            number in products, as in ``matmul``; here nothing is rounded.
    """
    (B, S, hq, _), hk, plan = q.shape, k.shape[2], _plan_of(q, k, Masks(ends, mask))
    q_Nrd = heads_first(q, hk) * scale
    k_NKd, v_NKd = heads_first(k, hk), heads_first(v, hk)
    out_Nrd = paddle.zeros_like(q_Nrd)

    def head(n: int) -> None:
        q_rd, k_Kd, v_Kd, out_rd = q_Nrd[n], k_NKd[n], v_NKd[n], out_Nrd[n]
        for block in plan.blocks(n // hk):
            p = block.probabilities(q_rd[block.rows], k_Kd[block.keys])
            paddle.matmul(p, v_Kd[block.keys], out=out_rd[block.rows])

    parallel_map(head, range(B * hk), q)
    return tokens_first(out_Nrd, B, S, hq), None


@replaceable
def attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    stats: Tensor | None,
    dy: Tensor,
    ends: Tensor | None,
    mask: Tensor | None,
    scale: float,
    parts: int = EXACT,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) on tensors without gradient, from the two results of :func:`attention_forward`.

    With P the probabilities and D = rowsum(dy * y): dv = P^T dy, ds = P * (dy v^T - D), dq = ds k, dk = ds^T q. D rides
    along as one more column of dy, against a column of -1 in v: one pass over the scores less.
    """
    B, hk, plan = q.shape[0], k.shape[2], _plan_of(q, k, Masks(ends, mask))
    q_Nrd = heads_first(q, hk) * scale
    k_NKd, v_NKd, dy_Nrd = (heads_first(x, hk) for x in (k, v, dy))
    total_Nr1 = _row_sums(heads_first(out, hk) * dy_Nrd)
    dy_Nre = paddle.concat([dy_Nrd, total_Nr1], axis=-1)
    v_NKe = paddle.concat([v_NKd, paddle.full([*v_NKd.shape[:2], 1], -1.0, v.dtype)], axis=-1)
    dq_Nrd, dk_NKd, dv_NKd = (paddle.zeros_like(x) for x in (q_Nrd, k_NKd, v_NKd))

    def head(n: int) -> None:
        q_rd, k_Kd, v_Ke, dy_rd, dy_re = q_Nrd[n], k_NKd[n], v_NKe[n], dy_Nrd[n], dy_Nre[n]
        dq_rd, dk_Kd, dv_Kd = dq_Nrd[n], dk_NKd[n], dv_NKd[n]
        for block in plan.blocks(n // hk):
            rows, keys = block.rows, block.keys
            p = block.probabilities(q_rd[rows], k_Kd[keys])
            dv_Kd[keys].add_(paddle.matmul(p, dy_rd[rows], transpose_x=True))
            ds = paddle.matmul(dy_re[rows], v_Ke[keys], transpose_y=True).multiply_(p)
            paddle.matmul(ds, k_Kd[keys], out=dq_rd[rows])
            dk_Kd[keys].add_(paddle.matmul(ds, q_rd[rows], transpose_x=True))

    parallel_map(head, range(B * hk), q)
    dq_Nrd.scale_(scale)
    dq, dk, dv = (tokens_first(dx, *x.shape[:3]) for x, dx in ((q, dq_Nrd), (k, dk_NKd), (v, dv_NKd)))
    return dq, dk, dv


def _plan_of(q: Tensor, k: Tensor, masks: Masks) -> Plan:
    (B, S, hq, _), (K, hk) = q.shape, k.shape[1:3]
    return make_plan(B, S, K, hq // hk, *masks.arrays(B, K))


def _row_sums(x: Tensor) -> Tensor:
    """Sum over the last axis, kept, as a matrix-vector product."""
    return paddle.matmul(x, paddle.ones([x.shape[-1], 1], x.dtype))
