"""Linear maps of stacked experts over tokens sorted by expert: the pieces from which adapted experts are put together.

``dispatch`` sorts, ``grouped_linear`` multiplies each row by its expert's matrix, ``combine`` adds rows back to their
tokens. Experts without an adapter use ``grouped_swiglu``, which does all of it in one operator and keeps less.
Letters: T tokens, k experts per token, N sorted rows (assignments), E experts, I input size, O output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from erniecore_ops._frozen import frozen
from erniecore_ops.grouped_swiglu import Part, Routes, add_back, make_routes
from erniecore_ops.kernels import replaceable
from erniecore_ops.parallel import parallel_map


def dispatch(x: Tensor, experts: Tensor, num_experts: int) -> tuple[Tensor, Routes]:
    """One row per assignment, sorted by expert.

    Args:
        x: [T, I]. experts: integers [T, k]; -1 = dropped.
    Returns:
        rows [N, I], and the routes that the other functions take.
    Raises:
        ValueError: an expert outside -1 .. num_experts - 1.
    """
    routes = make_routes(experts.numpy(), num_experts)
    rows: Tensor = _Dispatch.apply(x, routes)
    return rows, routes


def grouped_linear(x: Tensor, weight: Tensor, routes: Routes) -> Tensor:
    """``y[n] = x[n] weight[e(n)]`` with e(n) the expert of sorted row n. Cost follows N, not E.

    Args:
        x: [N, I]. weight: [E, I, O].
    Returns:
        [N, O]. A frozen weight costs no memory for the backward pass.
    """
    y: Tensor = _GroupedLinear.apply(x, weight, routes)
    return y


def grouped_matmul(x: Tensor, weight: Tensor, parts: Sequence[Part], *, transposed: bool = False) -> Tensor:
    """``y[n] = x[n] weight[e(n)]`` without a gradient, for weights that exist for this product only.

    Args:
        x: [N, I]. weight: [E, I, O], or [E, O, I] when ``transposed``. parts: which rows go to which expert, all N of them.
    Returns:
        [N, O].
    """
    x, weight = x.detach(), weight.detach()
    y = paddle.empty([x.shape[0], weight.shape[1 if transposed else 2]], x.dtype)

    def piece(part: Part) -> None:
        e, rows = part
        paddle.matmul(x[rows], weight[e], transpose_y=transposed, out=y[rows])

    parallel_map(piece, parts, x)
    return y


@replaceable
def grouped_weight_gradient(x: Tensor, dy: Tensor, parts: Sequence[Part], num_experts: int) -> Tensor:
    """The gradient of the weight of :func:`grouped_matmul`: rows x [N, I] and dy [N, O] -> [E, I, O].

    Args:
        parts: all rows of each expert that has any.
    """
    dw = paddle.zeros([num_experts, x.shape[1], dy.shape[1]], x.dtype)

    def total(part: Part) -> None:
        e, rows = part
        paddle.matmul(x[rows], dy[rows], transpose_x=True, out=dw[e])

    parallel_map(total, parts, dy)
    return dw


def grouped_rows(values: Tensor, routes: Routes) -> Tensor:
    """``values[e(n)]`` for every sorted row n: [E, O] -> [N, O], differentiable."""
    counts = [0] * values.shape[0]
    for expert, rows in routes.experts:
        counts[expert] = rows.stop - rows.start
    index = paddle.repeat_interleave(paddle.arange(len(counts)), paddle.to_tensor(counts))
    return paddle.gather(values, index)


def combine(y: Tensor, weights: Tensor, routes: Routes) -> Tensor:
    """``out[t] = sum_j weights[t, j] y[row of (t, j)]``: sorted rows [N, O] and weights [T, k] -> [T, O]."""
    weights_N1 = paddle.gather(weights.astype(y.dtype).reshape([-1, 1]), routes.slots)
    out: Tensor = _Combine.apply(y * weights_N1, routes)
    return out


class _Dispatch(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, routes: Routes) -> Tensor:
        ctx.routes = routes
        return paddle.gather(x.detach(), routes.tokens)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Tensor:
        return _padded(dx, ctx.routes)


class _Combine(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, y: Tensor, routes: Routes) -> Tensor:
        ctx.routes = routes
        return _padded(y, routes)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return paddle.gather(dy.detach(), ctx.routes.tokens)


def _padded(rows: Tensor, routes: Routes) -> Tensor:
    """Rows added up per token; dropped assignments point at one more row, of zeros."""
    zero = paddle.zeros([1, rows.shape[1]], rows.dtype)
    return add_back(paddle.concat([rows.detach(), zero]), routes.places)


class _GroupedLinear(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, routes: Routes) -> Tensor:
        ctx.routes, ctx.frozen = routes, frozen(x, weight)
        ctx.save_for_backward(*((weight,) if weight.stop_gradient else (weight, x)))
        return grouped_matmul(x, weight, routes.parts)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        weight, *kept = ctx.saved_tensor()
        routes: Routes = ctx.routes
        dy = dy.detach().contiguous()
        dx = None if ctx.frozen[0] else grouped_matmul(dy, weight, routes.parts, transposed=True)
        if not kept:
            return dx, None
        return dx, grouped_weight_gradient(kept[0].detach(), dy, routes.experts, weight.shape[0])
