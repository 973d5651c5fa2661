"""GELU, exact and by its two approximations: the activations of vision towers and of what follows them."""

from __future__ import annotations

from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import Tensor
from paddle.autograd import PyLayer

from erniecore_ops.kernels import in_use, replaceable

#: of ``quick_gelu``: x sigmoid(SLOPE x)
SLOPE = 1.702
#: of the approximation by tanh: x sigmoid(2 ROOT (x + BEND x^3))
ROOT, BEND = 0.7978845608028654, 0.044715


def gelu(x: Tensor, *, approximate: bool = False) -> Tensor:
    """``x Phi(x)``, Phi the normal distribution function, elementwise; ``approximate``: by tanh. x [..., I].

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
    """
    if "gelu_forward" not in in_use() or x.dtype not in (paddle.float32, paddle.float64):
        y: Tensor = F.gelu(x, approximate=approximate)
        return y
    return _apply(x, "tanh" if approximate else "erf")


def quick_gelu(x: Tensor) -> Tensor:
    """``x sigmoid(1.702 x)``, elementwise; x [..., I]. The activation of vision towers that were trained from CLIP's.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), section 2.
    """
    return _apply(x, "quick")


def _apply(x: Tensor, variant: str) -> Tensor:
    learning = paddle.is_grad_enabled() and not x.stop_gradient
    y: Tensor = _Gelu.apply(x, variant) if learning else gelu_forward(x, variant)
    return y


class _Gelu(PyLayer):  # type: ignore[misc]
    """Keeps its input only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, variant: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.variant = variant
        return gelu_forward(x.detach(), variant)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensor()
        return gelu_backward(x.detach(), dy.detach(), ctx.variant)


@replaceable
def gelu_forward(x: Tensor, variant: str) -> Tensor:
    """The activation on tensors without gradient; ``variant``: erf, tanh or quick."""
    y: Tensor = (
        F.sigmoid(x.scale(SLOPE)).multiply_(x) if variant == "quick" else F.gelu(x, approximate=variant == "tanh")
    )
    return y


@replaceable
def gelu_backward(x: Tensor, dy: Tensor, variant: str) -> Tensor:
    """With y = x S(x): ``dy (S + x S')``."""
    if variant == "erf":
        share = paddle.erf(x.scale(0.5**0.5)).scale(0.5, 0.5)
        slope = paddle.exp((x * x).scale(-0.5)).scale(ROOT / 2)
    else:
        share = F.sigmoid(x.scale(SLOPE) if variant == "quick" else ((x * x).scale(BEND, 1.0) * x).scale(2 * ROOT))
        inner = SLOPE if variant == "quick" else (x * x).scale(6 * ROOT * BEND, 2 * ROOT)
        slope = share * (1.0 - share) * inner
    return dy * (share + x * slope)
