"""A linear map with a frozen quantized weight. The backward pass keeps the quantized values and nothing else; the gradient of the
rows is exact for the dequantized weight.
"""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from erniecore_ops.packed_weights import QuantizedMatrix, quantized_matmul, quantized_matmul_backward


def quantized_linear(x: Tensor, weight: QuantizedMatrix) -> Tensor:
    """``x W'`` for one matrix, [.., I] -> [.., O] in the dtype of ``x``. The gradient reaches ``x``."""
    rows = x.reshape([-1, x.shape[-1]])
    learned = paddle.is_grad_enabled() and not x.stop_gradient
    y: Tensor = _Linear.apply(rows, weight) if learned else quantized_matmul(rows, weight)
    return y.reshape([*x.shape[:-1], y.shape[-1]])


class _Linear(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: QuantizedMatrix) -> Tensor:
        ctx.weight = weight
        return quantized_matmul(x.detach(), weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return quantized_matmul_backward(dy.detach().contiguous(), ctx.weight)
