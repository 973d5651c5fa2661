"""The highest scores of each row in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def top_experts(scores: NDArray[np.floating[Any]], k: int) -> NDArray[np.int64]:
    """Indices [T, k] of the k highest of scores [T, E], best first, of equal ones the first."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :k].astype(np.int64)
