"""Products of float32 matrices by bfloat16 parts, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def rounded(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """To the nearest bfloat16 number, ties to even; for finite numbers."""
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def split(x: NDArray[np.float32], parts: int) -> list[NDArray[np.float32]]:
    """bfloat16 numbers that add up to ``x``, the largest first: each is what those before it leave, rounded. Three are exact
    for normal numbers."""
    found = []
    for _ in range(parts):
        found.append(rounded(x))
        x = x - found[-1]
    return found


def matmul(x: NDArray[np.float32], y: NDArray[np.float32], parts: int) -> Array:
    """``x y`` [M, K] [K, N] of parts a of x and b of y with a + b < ``parts``; sums in float64."""
    left, right = split(x, parts), split(y, parts)
    pairs = [(a, b) for a in range(parts) for b in range(parts) if a + b < parts]
    total: Array = sum((left[a].astype(np.float64) @ right[b] for a, b in pairs), np.zeros(()))
    return total
