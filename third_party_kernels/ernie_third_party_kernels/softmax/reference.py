"""Softmax of rows in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def softmax(scores: Array, hidden: Array | None = None, alive: Array | None = None) -> Array:
    """Of [T, N] with ``hidden`` [T, m] added to the last m columns; rows where ``alive`` [T, 1] is 0 become 0."""
    scores = scores.copy()
    if hidden is not None:
        scores[:, scores.shape[1] - hidden.shape[1] :] += hidden
    exp = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights: Array = exp / exp.sum(axis=1, keepdims=True)
    return weights if alive is None else weights * alive
