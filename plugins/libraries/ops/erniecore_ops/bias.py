"""What a linear layer does beside its product: a bias on every row, and its gradient. Both on tensors without gradient."""

from __future__ import annotations

import paddle
from paddle import Tensor

from erniecore_ops.kernels import replaceable


@replaceable
def add_bias_(y: Tensor, bias: Tensor) -> Tensor:
    """``y + bias`` in place: y [..., O], bias [O]."""
    return y.add_(bias)


@replaceable
def sum_rows(dy: Tensor) -> Tensor:
    """The sum [O] of the rows of dy [T, O], the gradient of a bias, as a matrix-vector product: Paddle's reductions over rows
    use one core."""
    ones = paddle.ones([1, dy.shape[0]], dy.dtype)
    return paddle.matmul(ones, dy).reshape([dy.shape[1]])
