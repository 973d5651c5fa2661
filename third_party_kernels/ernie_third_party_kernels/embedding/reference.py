"""The gradient of a row lookup in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def backward(ids: NDArray[np.int64], dy: NDArray[np.floating[Any]], rows: int) -> NDArray[np.floating[Any]]:
    """``dw[v] = sum of dy[t] over the tokens with ids[t] = v``: ids [..], dy [.., H] -> [rows, H]."""
    dw = np.zeros((rows, dy.shape[-1]), dy.dtype)
    np.add.at(dw, ids.reshape(-1), dy.reshape(-1, dy.shape[-1]))
    return dw
