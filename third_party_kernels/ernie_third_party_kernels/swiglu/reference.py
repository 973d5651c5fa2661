"""The operator SwiGLU in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def forward(gate: Array, up: Array) -> Array:
    """The elementwise product silu(gate) up."""
    y: Array = gate / (1 + np.exp(-gate)) * up
    return y


def backward(gate: Array, up: Array, dy: Array) -> tuple[Array, Array]:
    """(d gate, d up): with s = sigmoid(gate), dy up s (1 + gate (1 - s)) and dy gate s."""
    s = 1 / (1 + np.exp(-gate))
    return dy * up * s * (1 + gate * (1 - s)), dy * gate * s
