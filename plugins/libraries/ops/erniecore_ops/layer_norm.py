"""Layer normalization: rows get mean 0 and variance 1, then a weight and a bias."""

from __future__ import annotations

from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import Tensor
from paddle.autograd import PyLayer

from erniecore_ops._frozen import frozen
from erniecore_ops.kernels import in_use, replaceable


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """``weight (x - mean) / sqrt(variance + epsilon) + bias`` over the last axis, in float32 (float64 for float64 input).

    Args:
        x: [..., H]. weight, bias: [H], of any floating-point dtype.
    Returns:
        [..., H] in ``x``'s dtype.
    Source: Ba, Kiros and Hinton, "Layer Normalization" (2016).
    """
    dtype = paddle.float64 if x.dtype == paddle.float64 else paddle.float32
    x32, weight32, bias32 = (t.astype(dtype) for t in (x, weight, bias))
    if "layer_norm_forward" not in in_use():  # Paddle's own is one operator
        y = F.layer_norm(x32, [x.shape[-1]], weight32, bias32, epsilon)
    elif paddle.is_grad_enabled():
        y = _LayerNorm.apply(x32, weight32, bias32, epsilon)
    else:
        y = layer_norm_forward(x32, weight32, bias32, epsilon)[0]
    return y.astype(x.dtype)


class _LayerNorm(PyLayer):  # type: ignore[misc]
    """Two numbers per row are saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        y, mean, inverse = layer_norm_forward(x.detach(), weight.detach(), bias.detach(), epsilon)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.frozen = frozen(x, weight, bias)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = (tensor.detach() for tensor in ctx.saved_tensor())
        wanted = not ctx.frozen[0], not all(ctx.frozen[1:])
        found = layer_norm_backward(x, weight, mean, inverse, dy.detach(), wanted)
        return tuple(None if still else dx for still, dx in zip(ctx.frozen, found, strict=True))


@replaceable
def layer_norm_forward(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean of each row, 1 / sqrt(variance + epsilon) of each row) on tensors without gradient. Means are products with a
    column: see ``rms_norm``."""
    H = x.shape[-1]
    x_TH, averages_H1 = x.reshape([-1, H]), paddle.full([H, 1], 1.0 / H, x.dtype)
    mean_T1 = paddle.matmul(x_TH, averages_H1)
    centered_TH = x_TH - mean_T1
    inverse_T1 = paddle.rsqrt(paddle.matmul(centered_TH * centered_TH, averages_H1) + epsilon)
    y_TH = paddle.matmul(inverse_T1, weight.reshape([1, H])).multiply_(centered_TH).add_(bias)
    return y_TH.reshape(x.shape), mean_T1.flatten(), inverse_T1.flatten()


@replaceable
def layer_norm_backward(
    x: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor, dy: Tensor, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(dx, dw, db), None where not ``wanted`` (x; weight and bias): with n = (x - mean) r and g = w dy, dw = sum_t dy n,
    db = sum_t dy, dx = r (g - mean(g) - n mean(g n))."""
    H = x.shape[-1]
    dy_TH, inverse_T1 = dy.reshape([-1, H]), inverse.reshape([-1, 1])
    normal_TH = (x.reshape([-1, H]) - mean.reshape([-1, 1])) * inverse_T1
    dw, db = ((dy_TH * normal_TH).sum(axis=0), dy_TH.sum(axis=0)) if wanted[1] else (None, None)
    if not wanted[0]:
        return None, dw, db
    scaled_TH, averages_H1 = dy_TH * weight, paddle.full([H, 1], 1.0 / H, x.dtype)
    along_T1 = paddle.matmul(scaled_TH * normal_TH, averages_H1)
    dx_TH = (scaled_TH - paddle.matmul(scaled_TH, averages_H1) - normal_TH * along_T1) * inverse_T1
    return dx_TH.reshape(x.shape), dw, db
