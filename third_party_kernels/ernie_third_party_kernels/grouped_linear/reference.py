"""The gradient of stacked matrices in numpy, one expert after the other. ``ends``: (expert, first row, row after the last)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Ends = Sequence[tuple[int, int, int]]


def weight_gradient(x: Array, dy: Array, ends: Ends, experts: int) -> Array:
    """Sums of outer products [E, I, O]; zero for experts without rows."""
    total = np.zeros((experts, x.shape[1], dy.shape[1]), x.dtype)
    for e, a, b in ends:
        total[e] += x[a:b].T @ dy[a:b]
    return total
