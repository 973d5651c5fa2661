"""Rotation of pairs in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def rotate(
    x: Array, cos: Array, sin: Array, sign: float = 1.0, halves: bool = False, heads: int | None = None
) -> Array:
    """Pairs (a, b) of x [B, S, h, d] -> (a cos - b sin, b cos + a sin); cos and sin [B or 1, S, d / 2]. Pair i is
    (2i, 2i + 1), or (i, i + d/2) with ``halves``. Heads from ``heads`` on stay as they are."""
    half = x.shape[-1] // 2
    first, second = (slice(half), slice(half, None)) if halves else (slice(0, None, 2), slice(1, None, 2))
    a, b = x[..., first], x[..., second]
    c, s = cos[:, :, None], sign * sin[:, :, None]
    y = np.empty_like(x)
    y[..., first], y[..., second] = a * c - b * s, b * c + a * s
    if heads is not None:
        y[:, :, heads:] = x[:, :, heads:]
    return y
