"""Packed weights in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ernie_third_party_kernels.packed_weights.levels import NF4

Array = NDArray[np.floating[Any]]


def numbers(codes: NDArray[np.int8], scales: Array, form: str, group: int, outputs: int) -> Array:
    """W' [.., O, I] of int8 codes [.., O, I], or of two to a byte [.., ceil(O / 2), I]; scales [.., O] or [.., O, G]."""
    if form == "int8":
        values = codes.astype(np.float64)
    else:
        low, high = (codes & 15) ^ 8, ((codes >> 4) & 15) ^ 8  # code + 8
        both = np.stack([low, high], axis=-2).reshape(*codes.shape[:-2], -1, codes.shape[-1])[..., :outputs, :]
        values = np.array(NF4)[both] if form == "nf4" else both.astype(np.float64) - 8
    wide = np.repeat(scales, group, axis=-1)[..., : codes.shape[-1]] if group else scales[..., None]
    return values * wide


def product(x: Array, codes: NDArray[np.int8], scales: Array, form: str, group: int, outputs: int) -> Array:
    """``x W'``, [N, I] -> [N, O]."""
    y: Array = x @ numbers(codes, scales, form, group, outputs).T
    return y
