"""RMS norm in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def forward(x: Array, weight: Array, epsilon: float) -> tuple[Array, Array]:
    """(y [T, H], 1 / rms [T]) of x [T, H]."""
    inverse = 1 / np.sqrt((x * x).mean(axis=1) + epsilon)
    return weight * x * inverse[:, None], inverse


def backward(x: Array, weight: Array, inverse: Array, dy: Array) -> tuple[Array, Array]:
    """(dx, dw): dw = sum_t r dy x, dx = r w dy - x r^3 (sum w dy x) / H."""
    r = inverse[:, None]
    along = (weight * dy * x).mean(axis=1, keepdims=True)
    return r * weight * dy - x * r**3 * along, (r * dy * x).sum(axis=0)
