"""Products with packed weights, and their gradients. The codes are what is kept for the backward pass. The gradient of the
input is exact for the numbers that the codes stand for; codes and scales have none. How a product is computed, with a
kernel on the codes or from a part of the numbers at a time, is the operator's matter.

Letters: N rows, I inputs, O outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253
from paddle.autograd import PyLayer  # noqa: TID253

from erniecore.api import ops

if TYPE_CHECKING:
    from erniecore_weight_only.layers import PackedWeight


def multiply(x: Tensor, weight: PackedWeight) -> Tensor:
    """``x W'``: [.., I] -> [.., O]."""
    rows, matrix = x.reshape([-1, x.shape[-1]]), weight.matrix
    learned = paddle.is_grad_enabled() and not x.stop_gradient
    y: Tensor = _Product.apply(rows, matrix) if learned else ops.packed_product(rows, matrix)
    return y.reshape([*x.shape[:-1], y.shape[-1]])


def multiply_grouped(x: Tensor, weight: PackedWeight, routes: Any) -> Tensor:
    """Rows [N, I] sorted by expert, each through its expert's W': [N, O]. Experts without rows are not unpacked."""
    learned = paddle.is_grad_enabled() and not x.stop_gradient
    multiplied = _GroupedProduct.apply if learned else ops.packed_grouped_product
    y: Tensor = multiplied(x, weight.matrix, routes)
    return y


class _Product(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Any) -> Tensor:
        ctx.matrix = matrix
        return ops.packed_product(x.detach(), matrix)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return ops.packed_product_back(dy, ctx.matrix)


class _GroupedProduct(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Any, routes: Any) -> Tensor:
        ctx.matrix, ctx.routes = matrix, routes
        return ops.packed_grouped_product(x.detach(), matrix, routes)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return ops.packed_grouped(dy.detach(), ctx.matrix, ctx.routes, back=True)
