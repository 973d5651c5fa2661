"""Rotation of adjacent pairs in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def rotate(x: Array, cos: Array, sin: Array, sign: float = 1.0) -> Array:
    """Pairs (a, b) of x [B, S, h, d] -> (a cos - b sin, b cos + a sin); cos and sin [B or 1, S, d / 2]."""
    a, b = x[..., 0::2], x[..., 1::2]
    c, s = cos[:, :, None], sign * sin[:, :, None]
    y = np.empty_like(x)
    y[..., 0::2], y[..., 1::2] = a * c - b * s, b * c + a * s
    return y
