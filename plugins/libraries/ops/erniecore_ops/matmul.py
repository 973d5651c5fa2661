"""Products of float32 matrices with the precision that a run allows, in the words of ``torch.set_float32_matmul_precision``:

    highest    float32, as Paddle makes them
    high       a kernel may make each factor a sum of two bfloat16 numbers, about 16 bits, and leave out the product of the
               smaller ones: an error of about 2^-16 of sum |x| |y|
    medium     a kernel may round each factor to bfloat16, 8 bits

Sums are float32 in all of them. Without a kernel that is faster, products are made as with ``highest``. The precision is one
of the process; it applies to :func:`linear`, to head and loss, to attention, and to weights that are frozen in bfloat16, whose
own numbers are exact (``highest``: three parts of the other factor, exact as well).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.autograd import PyLayer
from paddle.nn import functional

from erniecore_ops._frozen import frozen
from erniecore_ops.bias import add_bias_, sum_rows
from erniecore_ops.kernels import kernel_for, replaceable

#: precision -> bfloat16 numbers that a kernel may make of each float32 number; three are exact
PARTS: Mapping[str, int] = {"highest": 3, "high": 2, "medium": 1}
EXACT = PARTS["highest"]

#: Numbers of a weight that learns from which on its gradient is made here with ``highest`` too. Paddle's own linear layer takes
#: less time for each call, but what :func:`rematerialized` saves for it stays until the whole graph is gone.
LARGE = 1 << 20

_chosen = ["highest"]


def set_matmul_precision(precision: str) -> str:
    """From here on products may have this precision; returns why that makes none of them faster here, empty if it does.

    Raises:
        ValueError: no precision has this name.
    """
    if precision not in PARTS:
        raise ValueError(f"the precision of products must be one of {', '.join(PARTS)}, found {precision!r}")
    _chosen[0] = precision
    if precision == "highest":
        return ""
    sample = paddle.zeros([64, 64], "float32")
    if kernel_for(parts_matmul, sample, sample, False, False, PARTS[precision], None):
        return ""
    return f"in linear layers products are float32 as with highest: no kernel here makes them faster with {precision}"


def matmul_precision() -> str:
    """The precision that products may have now."""
    return _chosen[0]


def num_parts() -> int:
    """How many bfloat16 numbers a kernel may make of each float32 number now."""
    return PARTS[_chosen[0]]


def matmul(x: Tensor, y: Tensor, *, transpose_x: bool = False, transpose_y: bool = False) -> Tensor:
    """``x y`` of two matrices, with the precision of the process and without a gradient.

    Args:
        x: [M, K], or [K, M] when ``transpose_x``. y: [K, N], or [N, K] when ``transpose_y``.
    Returns:
        [M, N].
    """
    if num_parts() < EXACT:
        return parts_matmul(x, y, transpose_x, transpose_y, num_parts(), None)
    return paddle.matmul(x, y, transpose_x=transpose_x, transpose_y=transpose_y)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x W + b`` and its gradients, with the precision of the process.

    Args:
        x: [.., I]. weight: [I, O]. bias: [O].
    Returns:
        [.., O].
    """
    paddles = bias is None and num_parts() == EXACT and (weight.stop_gradient or weight.size < LARGE)
    if paddles or not x.dtype == weight.dtype == paddle.float32 or x.size == 0:
        y: Tensor = functional.linear(x, weight, bias)
        return y
    if paddle.is_grad_enabled() and not all(frozen(*_given(x, weight, bias))):
        y = _Linear.apply(x, weight, bias)
        return y
    return _rows_by(x.detach(), weight.detach(), bias)


class Linear(nn.Linear):  # type: ignore[misc]
    """A linear layer that computes with :func:`linear`; all else is ``paddle.nn.Linear``'s."""

    def forward(self, input: Tensor) -> Tensor:
        """[.., I] -> [.., O]."""
        return linear(input, self.weight, self.bias)


def is_plain_linear(layer: Any) -> bool:
    """Whether ``layer`` computes ``x W + b`` and nothing more: no class that was derived from a linear layer."""
    return type(layer) in (nn.Linear, Linear)


class _Linear(PyLayer):  # type: ignore[misc]
    """Keeps x only for the gradient of a weight that learns."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.frozen = frozen(*_given(x, weight, bias))
        ctx.shape = x.shape
        ctx.save_for_backward(weight) if ctx.frozen[1] else ctx.save_for_backward(weight, x)
        return _rows_by(x.detach(), weight.detach(), bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        weight, *kept = ctx.saved_tensor()
        dy_NO = dy.detach().reshape([-1, dy.shape[-1]]).contiguous()
        grads: list[Tensor | None] = [None] * len(ctx.frozen)
        if not ctx.frozen[0]:
            grads[0] = matmul(dy_NO, weight.detach(), transpose_y=True).reshape(ctx.shape)
        if kept:
            grads[1] = matmul(_matrix(kept[0].detach()), dy_NO, transpose_x=True)
        if not all(ctx.frozen[2:]):
            grads[2] = sum_rows(dy_NO)
        return tuple(grads)


def _given(*tensors: Tensor | None) -> list[Tensor]:
    return [x for x in tensors if x is not None]


def _matrix(x: Tensor) -> Tensor:
    return x.reshape([-1, x.shape[-1]]).contiguous()


def _rows_by(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = matmul(_matrix(x), weight).reshape([*x.shape[:-1], weight.shape[-1]])
    return y if bias is None else add_bias_(y, bias.detach())


@replaceable
def parts_matmul(
    x: Tensor, y: Tensor, transpose_x: bool, transpose_y: bool, parts: int, total: Tensor | None
) -> Tensor:
    """``x y`` of two float32 matrices, which may be rounded to sums of ``parts`` bfloat16 numbers (2 or 1), new or added to
    ``total``; no gradient. Here nothing is rounded."""
    found: Tensor = paddle.matmul(x, y, transpose_x=transpose_x, transpose_y=transpose_y)
    return found if total is None else total.add_(found)
