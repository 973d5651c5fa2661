"""Loss and slopes of rows of logits in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def cross_entropy(logits: Array, labels: NDArray[np.integer[Any]]) -> tuple[Array, Array]:
    """(-log softmax at the labels [T], softmax - onehot [T, V]) of logits [T, V]."""
    rows = np.arange(len(labels))
    top = logits.max(axis=1, keepdims=True)
    weights = np.exp(logits - top)
    sums = weights.sum(axis=1, keepdims=True)
    slopes = weights / sums
    slopes[rows, labels] -= 1
    return np.log(sums[:, 0]) + top[:, 0] - logits[rows, labels], slopes
