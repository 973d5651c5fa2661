"""bfloat16 in numpy, which has no such type: its bits travel as uint16."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: values that are converted at a time, so that what lies between stays in the cache
_BLOCK = 1 << 16


def float32_to_bfloat16(array: NDArray[Any]) -> NDArray[np.uint16]:
    """bfloat16 bits of ``array``, rounded to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    made = np.empty(bits.shape, np.uint16)
    source, target = bits.reshape(-1), made.reshape(-1)
    for start in range(0, source.size, _BLOCK):
        block = source[start : start + _BLOCK]
        rounded = block >> np.uint32(16)
        rounded &= np.uint32(1)
        rounded += np.uint32(0x7FFF)
        rounded += block
        rounded >>= np.uint32(16)
        nan = (block & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        if nan.any():
            rounded[nan] = block[nan] >> np.uint32(16) | np.uint32(0x40)
        target[start : start + _BLOCK] = rounded
    return made


def bfloat16_to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The exact float32 values of bfloat16 bits."""
    wide = bits.astype(np.uint32)
    wide <<= np.uint32(16)
    values: NDArray[np.float32] = wide.view(np.float32)
    return values
