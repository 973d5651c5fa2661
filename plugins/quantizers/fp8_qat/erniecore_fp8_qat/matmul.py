"""The matmul of a QAT layer with straight-through gradients, for one matrix and for stacked experts. Only its inputs are saved
for the backward pass, where the weight is rounded again.

    Y = Q(X) Q(W)    dX = g(dY) Q(W)ᵀ    dW = Xᵀ dY    (the last two rounded as the recipe says)

Letters: N rows, sorted by expert in a stack, I inputs, O outputs, E experts.
"""

from __future__ import annotations

from typing import Any, Protocol

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253
from paddle.autograd import PyLayer  # noqa: TID253

from erniecore.api import ops
from erniecore_fp8_qat.amax import AmaxReduction
from erniecore_fp8_qat.recipes import Recipe


class QatLayer(Protocol):
    """A layer that computes with rounded weights and inputs."""

    recipe: Recipe
    partners: list[Tensor]
    amax: AmaxReduction

    def scale_of(self, transformed: Tensor) -> Tensor:
        """[1] or [N, 1]: the scale of transformed inputs [N, I]; recorded in training."""
        ...


class PackedQatLayer(QatLayer, Protocol):
    """A layer with a packed weight."""

    def dequantize(self) -> Tensor:
        """The weight as the recipe unpacks it."""
        ...


def qat_matmul(x: Tensor, weight: Tensor, layer: QatLayer, routes: Any = None) -> Tensor:
    """x [N, I] through ``weight`` [I, O], or [E, I, O] with the ``routes`` of ``ops.dispatch``: [N, O] in ``x``'s dtype."""
    y: Tensor = _Matmul.apply(x, weight, layer, routes)
    return y


def quantized_matmul(x: Tensor, qweight: PackedQatLayer, routes: Any = None) -> Tensor:
    """The same with a quantized weight, which gets no gradient."""
    y: Tensor = _QuantizedMatmul.apply(x, qweight, routes)
    return y


def forward(x: Tensor, dequantized: Tensor, layer: QatLayer, routes: Any) -> tuple[Tensor, Tensor]:
    """Y, and the scale that the inputs had. ``dequantized``: the weight as the recipe unpacks it."""
    transformed = layer.recipe.transform(x.detach().astype("float32"))
    scale = layer.scale_of(transformed)
    rounded = layer.recipe.activation(transformed, scale)
    return _matmul(rounded, dequantized, routes, transposed=False).astype(x.dtype), scale


def input_gradient(dy: Tensor, dequantized: Tensor, recipe: Recipe, routes: Any) -> Tensor:
    """dX float32 of dY float32."""
    return recipe.transform(_matmul(recipe.for_input(dy), dequantized, routes, transposed=True))


def _matmul(x: Tensor, dequantized: Tensor, routes: Any, *, transposed: bool) -> Tensor:
    if routes is None:
        return paddle.matmul(x, dequantized, transpose_y=transposed)
    if not x.shape[0]:
        return paddle.zeros([0, dequantized.shape[1 if transposed else 2]])
    return ops.grouped_matmul(x, dequantized, routes.parts, transposed=transposed)


def weight_gradient(x: Tensor, dy: Tensor, weight: Tensor, routes: Any) -> Tensor:
    """Xᵀ dY in the shape of ``weight``, float32."""
    if routes is None:
        return paddle.matmul(x, dy, transpose_x=True)
    total = paddle.zeros(weight.shape)
    for expert, rows in routes.experts:
        paddle.matmul(x[rows], dy[rows], transpose_x=True, out=total[expert])
    return total


class _Matmul(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: QatLayer, routes: Any) -> Tensor:
        ctx.layer, ctx.routes, ctx.frozen = layer, routes, (x.stop_gradient, weight.stop_gradient)
        ctx.save_for_backward(x, weight)
        packed = layer.recipe.pack(weight, layer.partners, layer.amax.of_weight)
        ctx.scales = packed.scales
        y, ctx.scale = forward(x, layer.recipe.unpack(packed), layer, routes)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensor()
        recipe, dx, dw = ctx.layer.recipe, None, None
        wide = dy.detach().astype("float32")
        if not ctx.frozen[0]:
            dequantized = recipe.unpack(recipe.pack(weight, scales=ctx.scales))
            dx = input_gradient(wide, dequantized, recipe, ctx.routes).astype(x.dtype)
        if not ctx.frozen[1]:
            left, right = recipe.for_weight(x.detach().astype("float32"), wide, ctx.scale)
            dw = weight_gradient(left, right, weight, ctx.routes).astype(weight.dtype)
        return dx, dw


class _QuantizedMatmul(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, qweight: PackedQatLayer, routes: Any) -> Tensor:
        ctx.qweight, ctx.routes, ctx.dtype = qweight, routes, x.dtype
        return forward(x, qweight.dequantize(), qweight, routes)[0]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        wide, qweight = dy.detach().astype("float32"), ctx.qweight
        return input_gradient(wide, qweight.dequantize(), qweight.recipe, ctx.routes).astype(ctx.dtype)
