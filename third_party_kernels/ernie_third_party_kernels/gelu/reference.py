"""GELU and its two approximations in numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
ROOT, BEND, QUICK = math.sqrt(2 / math.pi), 0.044715, 1.702


def forward(x: Array, variant: str) -> Array:
    """x S(x); S is the normal distribution function (``erf``), or sigmoid of what ``tanh`` and ``quick`` say."""
    y: Array = x * _parts(x, variant)[0]
    return y


def backward(x: Array, dy: Array, variant: str) -> Array:
    """dy (S + x S')."""
    share, slope = _parts(x, variant)
    return dy * (share + x * slope)


def _parts(x: Array, variant: str) -> tuple[Array, Array]:
    """(S, S')."""
    if variant == "erf":
        below = np.vectorize(lambda v: math.erfc(-v / math.sqrt(2)) / 2, otypes=[float])(x)
        return below, np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    inner = 2 * ROOT * (x + BEND * x**3) if variant == "tanh" else QUICK * x
    slope = 2 * ROOT * (1 + 3 * BEND * x * x) if variant == "tanh" else QUICK
    share = 1 / (1 + np.exp(-inner))
    return share, share * (1 - share) * slope
