"""Rotary position embedding over adjacent pairs (2i, 2i + 1). Not the half-split form."""

from __future__ import annotations

import paddle
from paddle import Tensor


def rope_tables(position_ids: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of ``position * theta^(-2i/head_dim)``.

    Args:
        position_ids: integers [B, S].
    Returns:
        float32 [B, S, head_dim / 2] each; no gradient.
    Source: Su et al., "RoFormer" (2021).
    """
    exponent = paddle.arange(0, head_dim, 2, dtype="float32") / head_dim
    angle = position_ids.astype("float32").unsqueeze(-1) * paddle.pow(paddle.to_tensor(theta, "float32"), -exponent)
    return paddle.cos(angle), paddle.sin(angle)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate every pair of the last axis, in float32; the result has ``x``'s dtype.

    Args:
        x: [B, S, h, d]. cos, sin: float32 [B, S, d / 2].
    """
    B, S, h, d = x.shape
    pairs = x.astype("float32").reshape([B, S, h, d // 2, 2])
    even, odd = pairs[..., 0], pairs[..., 1]
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    turned = paddle.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return turned.reshape([B, S, h, d]).astype(x.dtype)
