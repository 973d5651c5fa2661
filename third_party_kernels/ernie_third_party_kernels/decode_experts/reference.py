"""The routed experts in numpy, one assignment after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def decode_experts(x: Array, gate: Array, up: Array, down: Array, experts: NDArray[np.int64], weights: Array) -> Array:
    """``y[t] = sum_j weights[t, j] (silu(x[t] gate[e]) * (x[t] up[e])) down[e]`` with e = experts[t, j]; -1 is left out."""
    y = np.zeros_like(x)
    for t, row in enumerate(experts):
        for j, e in enumerate(row):
            if e >= 0:
                g = x[t] @ gate[e]
                y[t] += weights[t, j] * (g / (1 + np.exp(-g)) * (x[t] @ up[e])) @ down[e]
    return y
