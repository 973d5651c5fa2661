"""Matmuls with packed weights, and their gradients. The quantized values are saved for the backward pass. The gradient of the
input is exact for the dequantized weight; quantized values and scales have none. The operator decides how the matmul is
computed: by a kernel on the quantized values, or by dequantizing some of the weight at a time.

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


def matmul(x: Tensor, weight: PackedWeight) -> Tensor:
    """``x W'``: [.., I] -> [.., O]."""
    rows, matrix = x.reshape([-1, x.shape[-1]]), weight.matrix
    learned = paddle.is_grad_enabled() and not x.stop_gradient
    y: Tensor = _Matmul.apply(rows, matrix) if learned else ops.quantized_matmul(rows, matrix)
    return y.reshape([*x.shape[:-1], y.shape[-1]])


def grouped_matmul(x: Tensor, weight: PackedWeight, routes: Any) -> Tensor:
    """Rows [N, I] sorted by expert, each through its expert's W': [N, O]. Experts without rows are not unpacked."""
    learned = paddle.is_grad_enabled() and not x.stop_gradient
    multiplied = _GroupedMatmul.apply if learned else ops.quantized_grouped_matmul
    y: Tensor = multiplied(x, weight.matrix, routes)
    return y


class _Matmul(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Any) -> Tensor:
        ctx.matrix = matrix
        return ops.quantized_matmul(x.detach(), matrix)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return ops.quantized_matmul_backward(dy.detach().contiguous(), ctx.matrix)


class _GroupedMatmul(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Any, routes: Any) -> Tensor:
        ctx.matrix, ctx.routes = matrix, routes
        return ops.quantized_grouped_matmul(x.detach(), matrix, routes)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return ops.quantized_grouped_matmul_backward(dy.detach().contiguous(), ctx.matrix, ctx.routes)
