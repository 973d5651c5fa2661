"""The activation of vision towers that were trained from CLIP's."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from erniecore_ops.swiglu import swiglu_backward, swiglu_forward

SLOPE = 1.702


def quick_gelu(x: Tensor) -> Tensor:
    """``x sigmoid(1.702 x)``, elementwise; x [..., I].

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), section 2.
    """
    y: Tensor = _QuickGelu.apply(x) if paddle.is_grad_enabled() and not x.stop_gradient else _forward(x)
    return y


class _QuickGelu(PyLayer):  # type: ignore[misc]
    """Keeps its input only; the sigmoid is computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _forward(x.detach())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensor()
        gate = x.detach().scale(SLOPE)
        return swiglu_backward(gate, paddle.ones_like(gate), dy.detach())[0]


def _forward(x: Tensor) -> Tensor:
    """``silu(1.702 x) / 1.702``: the kernel of SwiGLU computes it."""
    gate = x.scale(SLOPE)
    return swiglu_forward(gate, paddle.full_like(gate, 1 / SLOPE))
