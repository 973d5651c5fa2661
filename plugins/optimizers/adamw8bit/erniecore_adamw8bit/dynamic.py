"""Blockwise dynamic quantization: numbers as one byte each, and a scale per block.

The 256 values of a byte, in order, are (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2021, arXiv:2110.02861,
section 1.3; the same numbers as ``create_dynamic_map`` of bitsandbytes)

    signed:    0, 1, and ±10^(i − 6) c for i = 0 … 6 and c the centers of 2^i equal parts of [0.1, 1]
    unsigned:  0, 1, and  10^(i − 6) c for i = 0 … 6 and c the centers of 2^(i + 1) equal parts of [0.1, 1]

small ones relatively as exact as large ones, over seven decades. A block of n elements x is

    s = the element of largest magnitude, the first of several        byte_j = the value nearest to x_j / s, of two the lower one

and stands for value[byte_j] · s. The scale has the sign of its element (bitsandbytes has its magnitude), so this element is
exact, and what is quantized once stays the same when it is quantized again: blocks written as floats come back bit for bit.
A block whose scale is below 1e-30 is zero.

Letters: n elements, b of a block, k blocks.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import paddle  # noqa: TID253

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from paddle import Tensor

#: below this a block is zero: a product with the smallest value would have fewer bits
SMALLEST = 1e-30
_EXPONENTS = 7


def values_of(signed: bool) -> NDArray[np.float32]:
    """The 256 values in order, float32."""
    found = [0.0, 1.0]
    for i in range(_EXPONENTS):
        edges = np.linspace(0.1, 1.0, 2 ** (i if signed else i + 1) + 1)
        centers = 10.0 ** (i - _EXPONENTS + 1) * (edges[:-1] + edges[1:]) / 2
        found += [*centers, *(-centers if signed else ())]
    return np.sort(np.array(found)).astype(np.float32)


@lru_cache(maxsize=8)
def _tables(signed: bool, place: str) -> tuple[Tensor, Tensor]:
    """Values, and the middles between them, on the present device."""
    values = values_of(signed)
    middles = (values[:-1].astype(np.float64) + values[1:].astype(np.float64)) / 2
    return paddle.to_tensor(values), paddle.to_tensor(middles.astype(np.float32))


def quantized(x: Tensor, block: int, *, signed: bool) -> tuple[Tensor, Tensor]:
    """float32 [n] -> (uint8 [n], scales float32 [k])."""
    size = int(x.shape[0])
    if size == 0:
        return paddle.zeros([0], "uint8"), paddle.zeros([0])
    blocks = paddle.nn.functional.pad(x, [0, -size % block]).reshape([-1, block])
    where = blocks.abs().argmax(axis=1, keepdim=True)
    scales = paddle.take_along_axis(blocks, where, axis=1)
    scales = paddle.where(scales.abs() < SMALLEST, paddle.zeros_like(scales), scales)
    ratios = blocks / paddle.where(scales == 0, paddle.ones_like(scales), scales)
    ratios = paddle.where(scales == 0, paddle.zeros_like(ratios), ratios)
    codes = paddle.searchsorted(_tables(signed, str(x.place))[1], ratios, out_int32=True).astype("uint8")
    return codes.flatten()[:size], scales.flatten()


def dequantized(codes: Tensor, scales: Tensor, block: int, *, signed: bool) -> Tensor:
    """uint8 [n], float32 [k] -> float32 [n]."""
    size = int(codes.shape[0])
    if size == 0:
        return paddle.zeros([0])
    values = _tables(signed, str(codes.place))[0].gather(codes.astype("int32"))
    blocks = paddle.nn.functional.pad(values, [0, -size % block]).reshape([-1, block])
    whole: Tensor = (blocks * scales.unsqueeze(1)).flatten()[:size]
    return whole
