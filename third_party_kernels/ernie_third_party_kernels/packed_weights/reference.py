"""Packed weights in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ernie_third_party_kernels.packed_weights.levels import NF4

Array = NDArray[np.floating[Any]]


def dequantize(qweight: NDArray[np.int8], scales: Array, quant_dtype: str, group: int, outputs: int) -> Array:
    """W' [.., O, I] of int8 codes [.., O, I], or of two to a byte [.., ceil(O / 2), I]; scales [.., O] or [.., O, G]."""
    if quant_dtype == "int8":
        values = qweight.astype(np.float64)
    else:
        low, high = (qweight & 15) ^ 8, ((qweight >> 4) & 15) ^ 8  # code + 8
        both = np.stack([low, high], axis=-2).reshape(*qweight.shape[:-2], -1, qweight.shape[-1])[..., :outputs, :]
        values = np.array(NF4)[both] if quant_dtype == "nf4" else both.astype(np.float64) - 8
    wide = np.repeat(scales, group, axis=-1)[..., : qweight.shape[-1]] if group else scales[..., None]
    return values * wide


def matmul(x: Array, qweight: NDArray[np.int8], scales: Array, quant_dtype: str, group: int, outputs: int) -> Array:
    """``x W'``, [N, I] -> [N, O]."""
    y: Array = x @ dequantize(qweight, scales, quant_dtype, group, outputs).T
    return y
