"""Root-mean-square normalisation. Not LayerNorm: no mean is subtracted and there is no bias."""

from __future__ import annotations

import paddle
from paddle import Tensor


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """``weight * cast(x / sqrt(mean(x^2) + epsilon))`` over the last axis.

    Statistics and scaling are float32; the result is cast to ``x``'s dtype before ``weight`` multiplies it.

    Args:
        x: [..., H]. weight: [H].
    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
    """
    x32 = x.astype("float32")
    inverse = paddle.rsqrt(paddle.mean(x32 * x32, axis=-1, keepdim=True) + epsilon)
    return (x32 * inverse).astype(x.dtype) * weight
