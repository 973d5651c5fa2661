"""Attention and its gradients in numpy, with whole scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Seen = NDArray[np.bool_]


def visible(S: int, K: int, ends: NDArray[np.int32] | None, keep: Seen | None) -> Seen:
    """[B or 1, S, K]: key j is seen by row i if j <= i + K - S, i < ends[j] and keep[j]; ``ends``, ``keep`` [B, K]."""
    row, key = np.arange(S)[None, :, None], np.arange(K)[None, None, :]
    seen: Seen = np.less_equal(key, row + (K - S))
    if ends is not None:
        seen = seen & (row < ends[:, None, :])
    return seen if keep is None else seen & keep[:, None, :]


def frames(lengths: Sequence[int]) -> Seen:
    """[1, N, N]: patches of a frame see each other, and no others; the lengths of the frames add up to N."""
    frame = np.repeat(np.arange(len(lengths)), lengths)
    seen: Seen = frame[None, :, None] == frame[None, None, :]
    return seen


def weights(q: Array, k: Array, seen: Seen, scale: float) -> Array:
    """[B, hq, S, K]; rows that see nothing are 0."""
    scores = np.einsum("bshd,bkhd->bhsk", q, k.repeat(q.shape[2] // k.shape[2], axis=2)) * scale
    scores = np.where(seen[:, None], scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    exp = np.where(np.isfinite(scores), np.exp(scores - np.where(np.isfinite(top), top, 0)), 0)
    total = exp.sum(axis=-1, keepdims=True)
    shares: Array = np.divide(exp, total, out=np.zeros_like(exp), where=total > 0)
    return shares


def forward(q: Array, k: Array, v: Array, seen: Seen, scale: float) -> Array:
    """softmax(q k^T scale) v over what is seen."""
    y: Array = np.einsum("bhsk,bkhd->bshd", weights(q, k, seen, scale), v.repeat(q.shape[2] // v.shape[2], axis=2))
    return y


def backward(q: Array, k: Array, v: Array, dy: Array, seen: Seen, scale: float) -> tuple[Array, Array, Array]:
    """(dq, dk, dv): with P the weights and dP = dy v^T, dS = P (dP - rowsum(P dP)); dv = P^T dy, dq = dS k, dk = dS^T q."""
    (B, K, hk, d), group = k.shape, q.shape[2] // k.shape[2]
    p, dp = weights(q, k, seen, scale), np.einsum("bshd,bkhd->bhsk", dy, v.repeat(group, axis=2))
    ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True)) * scale
    dq = np.einsum("bhsk,bkhd->bshd", ds, k.repeat(group, axis=2))
    dk, dv = np.einsum("bhsk,bshd->bkhd", ds, q), np.einsum("bhsk,bshd->bkhd", p, dy)
    return dq, dk.reshape(B, K, hk, group, d).sum(axis=3), dv.reshape(B, K, hk, group, d).sum(axis=3)
