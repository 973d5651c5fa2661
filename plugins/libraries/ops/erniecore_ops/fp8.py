"""Eight-bit floating point and the transform that spreads outliers: what FP8 quantizers compute with. No scales are chosen
and no layers are known here.

E4M3 (``float8_e4m3fn``): 448 is the largest value, there is no infinity. E5M2: 57,344. Source of both: Micikevicius et al.,
"FP8 formats for deep learning" (arXiv:2209.05433).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import paddle
from paddle import Tensor

from erniecore_ops.kernels import replaceable


class FloatFormat(NamedTuple):
    """A format: its dtype in Paddle, its largest value."""

    dtype: str
    largest: float


#: by the names that settings use
FP8: dict[str, FloatFormat] = {"e4m3": FloatFormat("float8_e4m3fn", 448.0), "e5m2": FloatFormat("float8_e5m2", 57344.0)}


@replaceable
def fp8_quantize(x: Tensor, scale: Tensor, quant_dtype: str = "e4m3") -> Tensor:
    """The FP8 numbers nearest to ``x / scale``, ties to even, as float32; without gradient.

    What is beyond the largest value becomes it: values are clipped before the cast, which would otherwise make NaN of
    464 < abs(x) < 480 in E4M3, and infinity of what rounds beyond 57,344 in E5M2. NaN stays NaN.

    Args:
        x: any shape; computed in float32. scale: positive, broadcasts to ``x``. form: a key of ``FP8``.
    Returns:
        float32 in the shape of ``x``; its cast to the FP8 dtype is exact.
    """
    dtype, largest = FP8[quant_dtype]
    with paddle.no_grad():
        ratio = x.detach().astype("float32") / scale
        rounded = ratio.clip(-largest, largest).astype(dtype).astype("float32")
        return paddle.where(paddle.isnan(ratio), ratio, rounded)  # on the CPU the cast makes 448 of NaN


@replaceable
def hadamard(x: Tensor, block: int) -> Tensor:
    """``x`` times a block-diagonal Walsh-Hadamard matrix: each run of ``block`` values along the last axis times H with
    H₁ = 1 and H₂ₙ = [[H, H], [H, -H]]. Not normalized: H H = block · 1. Without gradient.

    Args:
        x: [.., n]; n is a multiple of ``block``, a power of two; 1 changes nothing.
    Raises:
        ValueError: a block that is no power of two or does not divide n.
    """
    if block < 1 or block & (block - 1) or x.shape[-1] % block:
        raise ValueError(f"blocks of {block} do not fit {x.shape[-1]} values")
    with paddle.no_grad():
        x = x.detach()
        if block == 1:
            return x
        return paddle.matmul(x.reshape([-1, block]), _walsh(block, str(x.dtype).rsplit(".", 1)[-1])).reshape(x.shape)


@lru_cache(maxsize=32)
def _walsh(size: int, dtype: str) -> Tensor:
    h = paddle.ones([1, 1], dtype)
    while h.shape[0] < size:
        h = paddle.concat([paddle.concat([h, h], axis=1), paddle.concat([h, -h], axis=1)])
    return h
