"""The product of a layer in FP8 with gradients that pass straight through the rounding, for one matrix and for stacked
experts. Beside its inputs nothing is kept for the backward pass: the weight is rounded again there.

    Y = Q(X) Q(W)    dX = g(dY) Q(W)ᵀ    dW = Xᵀ dY    (the last two rounded as the recipe says)

Letters: N rows, sorted by expert in a stack, I inputs, O outputs, E experts.
"""

from __future__ import annotations

from typing import Any, Protocol

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253
from paddle.autograd import PyLayer  # noqa: TID253

from erniecore.api import ops
from erniecore_fp8_qat.joint import Joined
from erniecore_fp8_qat.recipes import Recipe


class Site(Protocol):
    """A layer that computes in FP8."""

    recipe: Recipe
    partners: list[Tensor]
    joined: Joined

    def scale_of(self, turned: Tensor) -> Tensor:
        """[1] or [N, 1]: the scale of transformed inputs [N, I]; noted when training."""
        ...


class Codes(Site, Protocol):
    """A layer with a packed weight."""

    def numbers(self) -> Tensor:
        """The weight as the recipe unpacks it."""
        ...


def product(x: Tensor, weight: Tensor, site: Site, routes: Any = None) -> Tensor:
    """x [N, I] through ``weight`` [I, O], or [E, I, O] with the ``routes`` of ``ops.dispatch``: [N, O] in ``x``'s dtype."""
    y: Tensor = _Product.apply(x, weight, site, routes)
    return y


def packed_product(x: Tensor, codes: Codes, routes: Any = None) -> Tensor:
    """The same with codes, which get no gradient."""
    y: Tensor = _PackedProduct.apply(x, codes, routes)
    return y


def forward(x: Tensor, numbers: Tensor, site: Site, routes: Any) -> tuple[Tensor, Tensor]:
    """Y, and the scale that the inputs had. ``numbers``: the weight as the recipe unpacks it."""
    turned = site.recipe.turn(x.detach().astype("float32"))
    scale = site.scale_of(turned)
    rounded = site.recipe.activation(turned, scale)
    return _multiplied(rounded, numbers, routes, transposed=False).astype(x.dtype), scale


def input_gradient(dy: Tensor, numbers: Tensor, recipe: Recipe, routes: Any) -> Tensor:
    """dX float32 of dY float32."""
    return recipe.turn(_multiplied(recipe.for_input(dy), numbers, routes, transposed=True))


def _multiplied(x: Tensor, numbers: Tensor, routes: Any, *, transposed: bool) -> Tensor:
    if routes is None:
        return paddle.matmul(x, numbers, transpose_y=transposed)
    if not x.shape[0]:
        return paddle.zeros([0, numbers.shape[1 if transposed else 2]])
    return ops.grouped_product(x, numbers, routes.parts, transposed=transposed)


def weight_gradient(x: Tensor, dy: Tensor, weight: Tensor, routes: Any) -> Tensor:
    """Xᵀ dY in the shape of ``weight``, float32."""
    if routes is None:
        return paddle.matmul(x, dy, transpose_x=True)
    total = paddle.zeros(weight.shape)
    for expert, rows in routes.experts:
        paddle.matmul(x[rows], dy[rows], transpose_x=True, out=total[expert])
    return total


class _Product(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, site: Site, routes: Any) -> Tensor:
        ctx.site, ctx.routes, ctx.frozen = site, routes, (x.stop_gradient, weight.stop_gradient)
        ctx.save_for_backward(x, weight)
        packed = site.recipe.pack(weight, site.partners, site.joined.of_weight)
        ctx.scales = packed.scales
        y, ctx.scale = forward(x, site.recipe.unpack(packed), site, routes)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensor()
        recipe, dx, dw = ctx.site.recipe, None, None
        wide = dy.detach().astype("float32")
        if not ctx.frozen[0]:
            numbers = recipe.unpack(recipe.pack(weight, scales=ctx.scales))
            dx = input_gradient(wide, numbers, recipe, ctx.routes).astype(x.dtype)
        if not ctx.frozen[1]:
            left, right = recipe.for_weight(x.detach().astype("float32"), wide, ctx.scale)
            dw = weight_gradient(left, right, weight, ctx.routes).astype(weight.dtype)
        return dx, dw


class _PackedProduct(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, codes: Codes, routes: Any) -> Tensor:
        ctx.codes, ctx.routes, ctx.dtype = codes, routes, x.dtype
        return forward(x, codes.numbers(), codes, routes)[0]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        wide, codes = dy.detach().astype("float32"), ctx.codes
        return input_gradient(wide, codes.numbers(), codes.recipe, ctx.routes).astype(ctx.dtype)
