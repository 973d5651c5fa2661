"""Tensors of NumPy arrays that are given back whole: ``paddle.to_tensor`` of an array keeps some hundred bytes for ever, which a
process that makes three of them for each pass of a model, for days, cannot afford (seen in Paddle 3.3.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
from numpy.typing import NDArray

if TYPE_CHECKING:
    from paddle import Tensor


def tensor_of(array: NDArray[Any]) -> Tensor:
    """A copy of ``array`` on the current device, with its shape and dtype, which has no gradient."""
    found = paddle.empty(array.shape, str(array.dtype))
    found.set_value(np.asarray(array, order="C"))
    return found
