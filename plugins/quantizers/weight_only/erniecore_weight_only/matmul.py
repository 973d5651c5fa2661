"""Matmuls of routed experts with packed weights, and their gradients; ``ops.quantized_linear`` is that of one matrix. The
quantized values are saved for the backward pass. The gradient of the input is exact for the dequantized weight; quantized values
and scales have none.

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


def grouped_matmul(x: Tensor, weight: PackedWeight, routes: Any) -> Tensor:
    """Rows [N, I] sorted by expert, each through its expert's W': [N, O]. Experts without rows are not unpacked."""
    learned = paddle.is_grad_enabled() and not x.stop_gradient
    multiplied = _GroupedMatmul.apply if learned else ops.quantized_grouped_matmul
    y: Tensor = multiplied(x, weight.matrix, routes)
    return y


class _GroupedMatmul(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Any, routes: Any) -> Tensor:
        ctx.matrix, ctx.routes = matrix, routes
        return ops.quantized_grouped_matmul(x.detach(), matrix, routes)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return ops.quantized_grouped_matmul_backward(dy.detach().contiguous(), ctx.matrix, ctx.routes)
