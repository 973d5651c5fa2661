"""Attention to some of the keys, with the logarithm of the sum of each row's exponentials, by which results over other keys are
added: what attention to keys of several ranks is made of. Kernels of the operator ``attention`` compute it where they can.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), arXiv:1805.02867; Dao, "FlashAttention-2"
(2023), arXiv:2307.08691, for the backward pass from the logarithm.
"""

from __future__ import annotations

import math

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from erniecore_ops._attention_plan import Plan, make_plan
from erniecore_ops._head_order import heads_first, tokens_first
from erniecore_ops.attention import attention_backward, attention_forward
from erniecore_ops.kernels import kernel_for
from erniecore_ops.matmul import num_parts

#: the logarithm of rows that attend to nothing: finite, so that differences of two are no NaN
NOTHING = -1e30
#: logarithms beyond this are those of rows that attend to nothing, whatever sign an implementation gives them
_BLIND = 1e29
_LOG2E, _LN2 = math.log2(math.e), math.log(2.0)


class VisibleKeys:
    """Which of some keys each of some queries attends to.

    Args:
        ends: int32 [B, K], for each key the first row of these queries that no longer attends to it.
        rows: S, the number of queries.
        causal: row i attends to keys 0 .. i alone, of K = S; otherwise all keys come before all queries.

    Attributes:
        none: no query attends to any key.
    """

    def __init__(self, ends: NDArray[np.int32], rows: int, *, causal: bool) -> None:
        B, K = ends.shape
        first = np.arange(K) if causal else np.zeros(K, np.int64)
        self.none = not bool((np.minimum(ends, rows) > first).any())
        # as many hidden keys behind as there are queries: then the last of the others is before the diagonal of the first query
        self.padding = 0 if causal else rows
        padded = np.pad(ends, ((0, 0), (0, self.padding))).astype(np.int32)
        self.ends = None if causal and (ends >= rows).all() else paddle.to_tensor(padded.reshape([B, 1, -1, 1]))

    def padded(self, x: Tensor) -> Tensor:
        """Keys or values [B, K, hk, d] with what stands behind them."""
        if not self.padding:
            return x
        return paddle.concat([x, paddle.zeros([x.shape[0], self.padding, *x.shape[2:]], x.dtype)], axis=1)


def partial_attention(q: Tensor, k: Tensor, v: Tensor, keys: VisibleKeys, scale: float) -> tuple[Tensor, Tensor]:
    """Attention to the ``keys`` that are here, of tensors without gradient.

    Args:
        q: float32 or float64 [B, S, hq, d]. k, v: [B, K, hk, d] of the same dtype, hq a multiple of hk. scale: of q k^T.
    Returns:
        ([B, S, hq, d], log2 of the sum of exponentials [B, hq, S], ``NOTHING`` for rows that attend to no key).
    """
    k, v = keys.padded(k), keys.padded(v)
    given = q, k, v, keys.ends, None, scale, num_parts()
    if kernel_for(attention_forward, *given) is None:
        return _forward(q, k, v, keys.ends, scale)
    out, lse = attention_forward(*given)
    assert lse is not None, "a kernel of attention gives the logarithms of the sums"
    return out, paddle.where(lse.abs() >= _BLIND, paddle.full_like(lse, NOTHING), lse)


def partial_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dy: Tensor, keys: VisibleKeys, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv): what these keys add to dq, and the gradients of these keys and values from these queries.

    Args:
        q, k, v, keys, scale: as in :func:`partial_attention`. out, lse: of attention to all keys, as :func:`add_attention` gives
            them. dy: the gradient of ``out``.
    """
    K = k.shape[1]
    k, v = keys.padded(k), keys.padded(v)
    heights = paddle.where(lse <= -_BLIND, paddle.full_like(lse, -NOTHING), lse)  # no weight is left of these rows
    given = q, k, v, out, heights, dy, keys.ends, None, scale, num_parts()
    if kernel_for(attention_backward, *given) is not None:
        found = attention_backward(*given)
    else:
        found = _backward(q, k, v, out, heights, dy, keys.ends, scale)
    dq, dk, dv = found
    return dq, dk[:, :K], dv[:, :K]


def add_attention(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Attention to two sets of keys together, from that to each, as :func:`partial_attention` gives it."""
    (out, lse), (out_2, lse_2) = one, other
    top = paddle.maximum(lse, lse_2)
    weight, weight_2 = paddle.exp((lse - top) * _LN2), paddle.exp((lse_2 - top) * _LN2)
    total = weight + weight_2
    share, share_2 = (w.transpose([0, 2, 1]).unsqueeze(-1) for w in (weight / total, weight_2 / total))
    return out * share + out_2 * share_2, top + paddle.log2(total)


def _forward(q: Tensor, k: Tensor, v: Tensor, ends: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    (B, S, hq, _), hk, plan = q.shape, k.shape[2], _plan_of(q, k, ends)
    q_Nrd, k_NKd, v_NKd = heads_first(q, hk) * scale, heads_first(k, hk), heads_first(v, hk)
    out_Nrd = paddle.zeros_like(q_Nrd)
    lse_Nr = paddle.full(q_Nrd.shape[:2], NOTHING, q.dtype)
    for n in range(B * hk):
        for block in plan.blocks(n // hk):
            scores = block.scores(q_Nrd[n][block.rows], k_NKd[n][block.keys])
            top = scores.max(axis=-1, keepdim=True)
            weights = paddle.exp(scores - top)
            total = weights.sum(axis=-1, keepdim=True)
            found, height = paddle.matmul(weights, v_NKd[n][block.keys]) / total, top * _LOG2E + paddle.log2(total)
            if block.alive is not None:
                alive = block.alive.astype(found.dtype)
                found, height = found * alive, paddle.where(alive > 0, height, paddle.full_like(height, NOTHING))
            out_Nrd[n, block.rows], lse_Nr[n, block.rows] = found, height.squeeze(-1)
    lse = lse_Nr.reshape([B, hk, S, hq // hk]).transpose([0, 1, 3, 2]).reshape([B, hq, S])
    return tokens_first(out_Nrd, B, S, hq), lse


def _backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dy: Tensor, ends: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    (B, S, hq, _), hk, plan = q.shape, k.shape[2], _plan_of(q, k, ends)
    q_Nrd, k_NKd, v_NKd, dy_Nrd = heads_first(q, hk) * scale, *(heads_first(x, hk) for x in (k, v, dy))
    total_Nr1 = (heads_first(out, hk) * dy_Nrd).sum(axis=-1, keepdim=True)
    lse_Nr1 = lse.reshape([B, hk, hq // hk, S]).transpose([0, 1, 3, 2]).reshape([B * hk, -1, 1])
    dq_Nrd, dk_NKd, dv_NKd = (paddle.zeros_like(x) for x in (q_Nrd, k_NKd, v_NKd))
    for n in range(B * hk):
        for block in plan.blocks(n // hk):
            rows, keys = block.rows, block.keys
            scores = block.scores(q_Nrd[n][rows], k_NKd[n][keys])
            weights = paddle.exp(scores - lse_Nr1[n][rows] * _LN2)
            slopes = weights * (paddle.matmul(dy_Nrd[n][rows], v_NKd[n][keys], transpose_y=True) - total_Nr1[n][rows])
            dq_Nrd[n, rows] = paddle.matmul(slopes, k_NKd[n][keys])
            dk_NKd[n, keys] += paddle.matmul(slopes, q_Nrd[n][rows], transpose_x=True)
            dv_NKd[n, keys] += paddle.matmul(weights, dy_Nrd[n][rows], transpose_x=True)
    dq_Nrd = dq_Nrd * scale
    dq, dk, dv = (tokens_first(dx, *x.shape[:3]) for x, dx in ((q, dq_Nrd), (k, dk_NKd), (v, dv_NKd)))
    return dq, dk, dv


def _plan_of(q: Tensor, k: Tensor, ends: Tensor | None) -> Plan:
    (B, S, hq, _), (K, hk) = q.shape, k.shape[1:3]
    return make_plan(B, S, K, hq // hk, None if ends is None else ends.numpy().reshape(B, K), None)
