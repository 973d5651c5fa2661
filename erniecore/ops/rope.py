"""Rotary position embedding over adjacent pairs (2i, 2i + 1). Not the half-split form."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from erniecore.kernels import replaceable


def rope_tables(position_ids: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of ``position * theta^(-2i/head_dim)``.

    Args:
        position_ids: integers [B, S].
    Returns:
        float32 [B, S, head_dim / 2] each; no gradient.
    Source: Su et al., "RoFormer" (2021).
    """
    exponent = paddle.arange(0, head_dim, 2, dtype="float32") / head_dim
    frequency = paddle.pow(paddle.to_tensor(theta, "float32"), -exponent)
    angle = position_ids.astype("float32").unsqueeze(-1) * frequency
    return paddle.cos(angle), paddle.sin(angle)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate every pair of the last axis, in float32 (float64 for float64 input); the result has ``x``'s dtype.

    Args:
        x: [B, S, h, d]. cos, sin: float32 [B, S, d / 2] (B may be 1).
    """
    turn = _Rotate.apply if paddle.is_grad_enabled() else rotate
    if x.dtype == paddle.float32:
        turned: Tensor = turn(x, cos, sin)
        return turned
    if x.dtype == paddle.float64:
        turned = turn(x, cos.astype("float64"), sin.astype("float64"))
        return turned
    turned = turn(x.astype("float32"), cos, sin)
    return turned.astype(x.dtype)


class _Rotate(PyLayer):  # type: ignore[misc]
    """The gradient is the rotation by the opposite angle."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return rotate(x.detach(), cos, sin)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensor()
        return rotate(dy.detach(), cos, sin, -1.0), None, None


@replaceable
def rotate(x: Tensor, cos: Tensor, sin: Tensor, sign: float = 1.0) -> Tensor:
    """The rotation by ``sign`` times the angle, on tensors without gradient: ``x * C + swap(x) * S`` with tables as wide as x.

    Pairs are swapped and tables widened by products with constant 0/1 matrices: strided copies and broadcasting
    over an inner axis are an order of magnitude slower on CPU.
    """
    sin = sin if sign > 0 else -sin
    h, d = x.shape[2:]
    swap_dd, widen_eW, widen_signed_eW = _constants(h, d, str(x.dtype))
    out = paddle.matmul(x, swap_dd).multiply_(_widen(sin, widen_signed_eW, x.shape))
    rotated: Tensor = out.add_(_widen(cos, widen_eW, x.shape).multiply_(x))
    return rotated


def _widen(table: Tensor, matrix_eW: Tensor, shape: list[int]) -> Tensor:
    """[B or 1, S, d/2] -> [B, S, h, d]."""
    if table.shape[0] != shape[0]:
        table = table.expand([*shape[:2], table.shape[-1]])
    return paddle.matmul(table, matrix_eW).reshape(shape)


@lru_cache(maxsize=16)
def _constants(h: int, d: int, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    """Pair swap [d, d]; and the matrices that copy entry i of a table to columns 2i and 2i + 1 of every head, the
    second one with a minus sign at 2i."""
    even, odd = np.arange(0, d, 2), np.arange(1, d, 2)
    swap, widen, signed = np.zeros((d, d)), np.zeros((d // 2, h, d)), np.zeros((d // 2, h, d))
    swap[odd, even] = swap[even, odd] = 1.0
    widen[even // 2, :, even] = widen[even // 2, :, odd] = 1.0
    signed[even // 2, :, even], signed[even // 2, :, odd] = -1.0, 1.0
    dtype = dtype.rsplit(".", 1)[-1]
    arrays = (swap, widen.reshape(d // 2, h * d), signed.reshape(d // 2, h * d))
    first, second, third = (paddle.to_tensor(array.astype(dtype)) for array in arrays)
    return first, second, third
