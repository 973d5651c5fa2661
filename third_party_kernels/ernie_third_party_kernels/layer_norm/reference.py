"""Layer norm in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def forward(x: Array, weight: Array, bias: Array, epsilon: float) -> tuple[Array, Array, Array]:
    """(y [T, H], mean [T], 1 / deviation [T]) of x [T, H]."""
    mean = x.mean(axis=1)
    inverse = 1 / np.sqrt(x.var(axis=1) + epsilon)
    return weight * (x - mean[:, None]) * inverse[:, None] + bias, mean, inverse


def backward(x: Array, weight: Array, mean: Array, inverse: Array, dy: Array) -> tuple[Array, Array, Array]:
    """(dx, dw, db): with n = (x - mean) r and g = w dy, dx = r (g - mean(g) - n mean(g n)), dw = sum_t dy n."""
    r = inverse[:, None]
    normal, scaled = (x - mean[:, None]) * r, weight * dy
    along = (scaled * normal).mean(axis=1, keepdims=True)
    dx = r * (scaled - scaled.mean(axis=1, keepdims=True) - normal * along)
    return dx, (dy * normal).sum(axis=0), dy.sum(axis=0)
