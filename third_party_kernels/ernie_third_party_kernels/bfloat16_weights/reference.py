"""Products with weights that are kept in bfloat16, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 numbers of bfloat16 bits; exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def matmul(x: Array, bits: NDArray[np.uint16], transposed: bool) -> Array:
    """``x W`` with W [I, O], or ``x Wᵀ`` with W [O, I] when ``transposed``: [N, I] -> [N, O]."""
    w = widened(bits).astype(np.float64)
    y: Array = x @ (w.T if transposed else w)
    return y
