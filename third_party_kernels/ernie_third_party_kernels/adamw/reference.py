"""AdamW in numpy (Loshchilov and Hutter 2019, algorithm 2)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def adamw(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    rate: float,
    decay: float,
    betas: tuple[float, float],
    epsilon: float,
    t: int,
) -> tuple[Array, Array, Array]:
    """(parameter, first moment, second moment) after update number ``t``."""
    one, two = betas
    m, v = one * m + (1 - one) * g, two * v + (1 - two) * g * g
    moved = (m / (1 - one**t)) / (np.sqrt(v / (1 - two**t)) + epsilon)
    return p * (1 - rate * decay) - rate * moved, m, v
