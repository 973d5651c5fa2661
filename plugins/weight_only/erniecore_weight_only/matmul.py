"""Products with packed weights. Only a part of the numbers exists at a time, in the forward and in the backward pass: the
codes are what is kept for it. The gradient of the input is exact for the numbers that the codes stand for; codes and
scales have none.

Letters: N rows, I inputs, O outputs, E experts, n experts at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253
from paddle.autograd import PyLayer  # noqa: TID253

from erniecore.api import ops

if TYPE_CHECKING:
    from erniecore_weight_only.layers import PackedWeight

#: numbers that are unpacked at a time (64 MiB in float32); one expert or two outputs at least
CHUNK = 1 << 24


def multiply(x: Tensor, weight: PackedWeight) -> Tensor:
    """``x W'``: [.., I] -> [.., O]."""
    y: Tensor = _Product.apply(x.reshape([-1, x.shape[-1]]), weight, None)
    return y.reshape([*x.shape[:-1], y.shape[-1]])


def multiply_grouped(x: Tensor, weight: PackedWeight, routes: Any) -> Tensor:
    """Rows [N, I] sorted by expert, each through its expert's W': [N, O]. Experts without rows are not unpacked."""
    y: Tensor = _Product.apply(x, weight, routes)
    return y


class _Product(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: PackedWeight, routes: Any) -> Tensor:
        ctx.weight, ctx.routes = weight, routes
        if routes is None:
            parts = [paddle.matmul(x, w, transpose_y=True) for _, w in _outputs(weight)]
            return parts[0] if len(parts) == 1 else paddle.concat(parts, axis=-1)
        return _by_expert(x.detach(), weight, routes, transposed=True)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        if ctx.routes is not None:
            return _by_expert(dy.detach(), ctx.weight, ctx.routes, transposed=False)
        dx: Any = None
        for columns, w in _outputs(ctx.weight):
            part = paddle.matmul(dy[:, columns], w)
            dx = part if dx is None else dx.add_(part)
        return dx


def _outputs(weight: PackedWeight) -> Iterator[tuple[slice, Tensor]]:
    """(outputs, their W' [o, I]) in turn."""
    inputs, outputs = weight.shape
    step = max(2, CHUNK // max(inputs, 1) // 2 * 2)
    for start in range(0, outputs, step):
        columns = slice(start, min(start + step, outputs))
        yield columns, weight.numbers(outputs=columns)


def _by_expert(rows: Tensor, weight: PackedWeight, routes: Any, *, transposed: bool) -> Tensor:
    """[N, I] -> [N, O], or back."""
    _, inputs, outputs = weight.shape
    used = [part.expert for part in routes.experts]
    step = max(1, CHUNK // max(inputs * outputs, 1))
    pieces = []
    for first in range(0, len(used), step):
        chosen = used[first : first + step]
        start, stop = routes.experts[first].rows.start, routes.experts[first + len(chosen) - 1].rows.stop
        place = {expert: index for index, expert in enumerate(chosen)}
        parts = [
            part._replace(expert=place[part.expert], rows=slice(part.rows.start - start, part.rows.stop - start))
            for part in routes.parts
            if part.expert in place
        ]
        numbers = weight.numbers(experts=chosen)
        pieces.append(ops.grouped_product(rows[start:stop], numbers, parts, transposed=transposed))
    if not pieces:
        return paddle.zeros([0, outputs if transposed else inputs], rows.dtype)
    return pieces[0] if len(pieces) == 1 else paddle.concat(pieces)
