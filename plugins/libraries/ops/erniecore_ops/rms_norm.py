"""Root-mean-square normalization. Not LayerNorm: no mean is subtracted and there is no bias."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from erniecore_ops._frozen import frozen
from erniecore_ops.kernels import replaceable


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """``weight * cast(x / sqrt(mean(x^2) + epsilon))`` over the last axis.

    Statistics and scaling are float32 (float64 for float64 input); the result is cast to ``x``'s dtype before
    ``weight`` multiplies it.

    Args:
        x: [..., H]. weight: [H].
    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
    """
    if x.dtype == weight.dtype and x.dtype in (paddle.float32, paddle.float64):
        learning = paddle.is_grad_enabled()
        y: Tensor = _RMSNorm.apply(x, weight, epsilon) if learning else rms_norm_forward(x, weight, epsilon)[0]
        return y
    x32 = x.astype("float32")
    inverse = paddle.rsqrt(paddle.mean(x32 * x32, axis=-1, keepdim=True) + epsilon)
    return (x32 * inverse).astype(x.dtype) * weight


class _RMSNorm(PyLayer):  # type: ignore[misc]
    """One number per row is saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        y, inverse = rms_norm_forward(x.detach(), weight.detach(), epsilon)
        ctx.save_for_backward(x, weight, inverse)
        ctx.frozen = frozen(x, weight)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight, inverse = ctx.saved_tensor()
        wanted = not ctx.frozen[0], not ctx.frozen[1]
        return rms_norm_backward(x.detach(), weight.detach(), inverse, dy.detach(), wanted)


@replaceable
def rms_norm_forward(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """(y, 1 / rms of each row) on tensors without gradient.

    Row sums are products with a column, and row factors times ``weight`` are outer products: both are matrix products,
    which on CPU are several times faster than reductions and broadcasts.
    """
    averages_H1, epsilon_1 = _constants(x.shape[-1], epsilon, x.dtype)
    inverse = paddle.matmul(x * x, averages_H1).add_(epsilon_1).rsqrt_()
    return paddle.matmul(inverse, weight.reshape([1, -1])).multiply_(x), inverse


@replaceable
def rms_norm_backward(
    x: Tensor, weight: Tensor, inverse: Tensor, dy: Tensor, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """(dx, dw), None where not ``wanted``: with r = 1 / rms, dw = sum_t r dy x, dx = r w dy - x r^3 (sum w dy x) / H."""
    H = x.shape[-1]
    x_TH, dy_TH, inverse_T1 = x.reshape([-1, H]), dy.reshape([-1, H]), inverse.reshape([-1, 1])
    weight_1H = weight.reshape([1, H])
    dy_x_TH = dy_TH * x_TH
    d_weight = None
    if wanted[1]:
        d_weight = paddle.matmul(inverse_T1, dy_x_TH, transpose_x=True).reshape([H])
    if not wanted[0]:
        return None, d_weight
    along_T1 = paddle.matmul(dy_x_TH, weight_1H, transpose_y=True)
    along_T1 = along_T1.multiply_(inverse_T1 * inverse_T1 * inverse_T1)
    less_TH = paddle.matmul(along_T1, paddle.full([1, H], 1.0 / H, x.dtype)).multiply_(x_TH)
    dx_TH = paddle.matmul(inverse_T1, weight_1H).multiply_(dy_TH).subtract_(less_TH)
    return dx_TH.reshape(x.shape), d_weight


@lru_cache(maxsize=16)
def _constants(H: int, epsilon: float, dtype: Any) -> tuple[Tensor, Tensor]:
    """A column of 1/H [H, 1], and epsilon [1]."""
    return paddle.full([H, 1], 1.0 / H, dtype), paddle.full([1], epsilon, dtype)
