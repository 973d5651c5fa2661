"""Quantization and dequantization: tensor-wise and block-wise FP8, and int8 inputs. Pure functions, no layers.

tensor   s = max|x| / 448                           one per weight, or per expert of a stack
block    s = 2^ceil(log2(max|x| / 448))             per 128 consecutive inputs of a row, per 128x128 of a weight
int8     s = max|x| / 127                           of a layer's inputs, or of each row

x' = s cast(clip(x / s, ±448)), rounded to nearest, ties to even. A maximum of zero has s = 1. A power of two makes the
division exact and never overflows. Sources: arXiv:2209.05433 (formats), arXiv:2412.19437 section 3.3 (blocks).

Letters: N rows, I inputs, O outputs; ``..`` is the experts of a stack, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore.api import NumericsError, ops

#: side of a block
BLOCK = 128


def amax_scale(largest: Tensor, quant_dtype: str = "e4m3") -> Tensor:
    """The scale at which ``largest`` becomes the largest value of the format; 1 where it is zero."""
    scale = largest / ops.FP8[quant_dtype].largest
    return paddle.where(scale > 0, scale, paddle.ones_like(scale))


def int8_scale(largest: Tensor) -> Tensor:
    """The scale at which ``largest`` becomes 127; 1 where it is zero."""
    scale = largest / 127.0
    return paddle.where(scale > 0, scale, paddle.ones_like(scale))


def rounded_int8(x: Tensor, scale: Tensor) -> Tensor:
    """``x``, quantized to int8 and dequantized: rounded half to even, clipped to ±127 scales."""
    return paddle.round(x / scale).clip(-127.0, 127.0) * scale


def power_of_two(scale: Tensor) -> Tensor:
    """The smallest power of two that is at least ``scale``, exactly; within the normal numbers of float32.

    By exponent and mantissa of the bits: a logarithm would miss powers of two by rounding.
    """
    bits = scale.clip(2.0**-126, 2.0**127).view("int32")
    fraction = bits & paddle.full_like(bits, 0x007FFFFF)
    up = (fraction > 0).astype("int32") * (1 << 23)
    return (bits - fraction + up).view("float32")


def largest(weight: Tensor) -> Tensor:
    """max|W| of [I, O]: a scalar. Of [E, I, O]: [E]."""
    return weight.abs().max(axis=[weight.ndim - 2, weight.ndim - 1])


def row_blocks(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [N, I] in FP8 by 1x128 blocks: numbers [N, I] that are not scaled yet, scales [N, ceil(I / 128)]."""
    parts = _padded(x, (1, BLOCK)).reshape([x.shape[0], -1, BLOCK])
    scale = power_of_two(amax_scale(parts.abs().max(axis=-1, keepdim=True)))
    dequantized = ops.fp8_quantize(parts, scale).reshape([x.shape[0], -1])
    return dequantized[:, : x.shape[1]], scale.squeeze(-1)


def rounded_rows(x: Tensor) -> Tensor:
    """x [N, I] as 1x128 blocks in FP8 stand for it."""
    dequantized, scale = row_blocks(x)
    return dequantized * paddle.repeat_interleave(scale, BLOCK, axis=1)[:, : x.shape[1]]


def weight_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[.., I, O] in FP8 by 128x128 blocks: numbers that are not scaled yet, scales [.., ceil(I / 128), ceil(O / 128)]."""
    *stack, inputs, outputs = weight.shape
    padded = _padded(weight, (BLOCK, BLOCK))
    rows, columns = padded.shape[-2] // BLOCK, padded.shape[-1] // BLOCK
    parts = padded.reshape([-1, rows, BLOCK, columns, BLOCK])
    scale = power_of_two(amax_scale(parts.abs().max(axis=[2, 4], keepdim=True)))
    dequantized = ops.fp8_quantize(parts, scale).reshape(padded.shape)[..., :inputs, :outputs]
    return dequantized, scale.reshape([*stack, rows, columns])


def spread_blocks(scale: Tensor, shape: Sequence[int]) -> Tensor:
    """Scales of :func:`weight_blocks` for every number of a weight of ``shape``."""
    for axis, size in ((-2, shape[-2]), (-1, shape[-1])):
        scale = paddle.repeat_interleave(scale, BLOCK, axis=axis)
        scale = scale[..., :size, :] if axis == -2 else scale[..., :size]
    return scale


def _padded(x: Tensor, blocks: tuple[int, int]) -> Tensor:
    """Zeros behind the last two axes up to whole blocks; zeros change no maximum of absolute values."""
    rows, columns = (-size % block for size, block in zip(x.shape[-2:], blocks, strict=True))
    if columns:
        x = paddle.concat([x, paddle.zeros([*x.shape[:-1], columns], x.dtype)], axis=-1)
    if rows:
        x = paddle.concat([x, paddle.zeros([*x.shape[:-2], rows, x.shape[-1]], x.dtype)], axis=-2)
    return x


def to_bits(dequantized: Tensor) -> Tensor:
    """The bits of values that are exact in E4M3, uint8."""
    return dequantized.astype(ops.FP8["e4m3"].dtype).view("uint8")


def from_bits(qweight: Tensor) -> Tensor:
    """The values of E4M3 bits, float32."""
    return qweight.view(ops.FP8["e4m3"].dtype).astype("float32")


def check_finite(weight: Tensor, where: str) -> None:
    """Raises ``NumericsError`` for values that are not finite; ``where`` names the weight."""
    finite = paddle.isfinite(weight.detach().astype("float32"))
    if not bool(finite.all()):
        found = f"{int((~finite).sum())} values"
        raise NumericsError("a weight that is not finite cannot be quantized", where=where, found=found)


def hadamard_block(wanted: int, width: int) -> int:
    """``wanted``, or the largest power of two below it that divides ``width``; 1 for 0."""
    block = max(wanted, 1)
    while width % block:
        block //= 2
    return block
