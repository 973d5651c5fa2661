"""Rounding to FP8 in numpy, from the definition of the formats."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: bits of the fraction, exponent of the smallest normal number, largest value
QUANT_DTYPES = {"e4m3": (3, -6, 448.0), "e5m2": (2, -14, 57344.0)}


def fp8_quantize(
    x: NDArray[np.floating[Any]], scale: NDArray[np.floating[Any]], quant_dtype: str
) -> NDArray[np.float64]:
    """The number of the format nearest to x / scale, ties to even; clipped to the largest."""
    fraction, lowest, largest = QUANT_DTYPES[quant_dtype]
    ratio = np.clip((x / scale).astype(np.float64), -largest, largest)
    _, exponent = np.frexp(ratio)
    step = np.exp2(np.maximum(exponent - 1, lowest) - fraction)
    y: NDArray[np.float64] = np.round(ratio / step) * step
    return y
