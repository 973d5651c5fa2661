"""The Walsh-Hadamard transform in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def hadamard(x: NDArray[np.floating[Any]], block: int) -> NDArray[np.floating[Any]]:
    """Runs of ``block`` values along the last axis times H, H of 2n being [[H, H], [H, -H]] of n; H H = block."""
    h = np.ones((1, 1))
    while len(h) < block:
        h = np.block([[h, h], [h, -h]])
    y: NDArray[np.floating[Any]] = (x.reshape(-1, block) @ h).reshape(x.shape)
    return y
