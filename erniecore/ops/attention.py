"""Causal attention with grouped key/value heads, packed rows and key masks. Holds no state and no cache."""

from __future__ import annotations

import paddle
import paddle.nn.functional as F
from paddle import Tensor


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    startend_row_indices: Tensor | None = None,
    attention_mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """``softmax(q k^T scale + mask) v``; query row i sees keys 0 .. i + K - S.

    Args:
        q: [B, S, hq, d]. k, v: [B, K, hk, d] with hq a multiple of hk; head h reads key head h // (hq / hk).
        startend_row_indices: int32 [B, 1, S, 1]; for each key column the first query row that can no longer
            see it (needs K == S).
        attention_mask: [B, K], 0 hides a key.
        scale: 1 / sqrt(d) by default.
    Returns:
        [B, S, hq, d]; rows that see no key are 0.
    Raises:
        ValueError: ``startend_row_indices`` with K != S.
    Source: Vaswani et al. (2017); Ainslie et al., "GQA" (2023); Wang et al., "FlashMask" (2024) for the row indices.
    """
    B, S, hq, d = q.shape
    K, hk = k.shape[1], k.shape[2]
    if startend_row_indices is not None and K != S:
        raise ValueError(f"startend_row_indices needs as many keys as queries, not {K} and {S}")
    group = hq // hk
    q = q.transpose([0, 2, 1, 3]).reshape([B, hk, group, S, d]).astype("float32")
    k = k.transpose([0, 2, 1, 3]).unsqueeze(2).astype("float32")
    v32 = v.transpose([0, 2, 1, 3]).unsqueeze(2).astype("float32")
    scores = paddle.matmul(q, k, transpose_y=True) * (d**-0.5 if scale is None else scale)
    row = paddle.arange(S).reshape([1, 1, 1, S, 1])
    seen = paddle.arange(K).reshape([1, 1, 1, 1, K]) <= row + (K - S)
    if startend_row_indices is not None:
        seen = paddle.logical_and(seen, row < startend_row_indices.reshape([B, 1, 1, 1, K]).astype("int64"))
    if attention_mask is not None:
        seen = paddle.logical_and(seen, attention_mask.reshape([B, 1, 1, 1, K]) != 0)
    weights = F.softmax(paddle.where(seen, scores, paddle.full([1], -1e30)), axis=-1)
    weights = weights * seen.astype("float32")
    out = paddle.matmul(weights, v32).reshape([B, hq, S, d])
    return out.transpose([0, 2, 1, 3]).astype(v.dtype)
