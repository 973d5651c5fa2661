"""Attention of one new position per sequence in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def decode_attention(q: Array, k: Array, v: Array, keep: NDArray[np.bool_] | None, scale: float) -> Array:
    """softmax(q k^T scale) v for q [B, 1, hq, d] and k, v [B, K, hk, d]; ``keep`` [B, K] false hides a key."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat(group, axis=2), v.repeat(group, axis=2)
    scores = np.einsum("bshd,bkhd->bhsk", q, k) * scale
    seen = np.ones(k.shape[:2], dtype=bool) if keep is None else keep
    scores = np.where(seen[:, None, None], scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    exp = np.where(np.isfinite(scores), np.exp(scores - np.where(np.isfinite(top), top, 0)), 0)
    total = exp.sum(axis=-1, keepdims=True)
    weights = np.divide(exp, total, out=np.zeros_like(exp), where=total > 0)
    y: Array = np.einsum("bhsk,bkhd->bshd", weights, v)
    return y
