"""Linear maps whose weight is frozen and kept in bfloat16 while everything else is float32: half the memory, and the numbers
of the weight are exact. Products are made in float32, and nothing is rounded unless ``matmul_precision`` allows it. Gradients
reach the rows and the bias.

A weight may lie as Paddle has it, [I, O], or as public checkpoints have it, [O, I] (``transposed``), also as a view of a file.
Letters: N rows, I inputs, O outputs, E experts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from erniecore_ops.grouped_linear import grouped_matmul
from erniecore_ops.grouped_swiglu import Part, Routes
from erniecore_ops.kernels import replaceable
from erniecore_ops.matmul import EXACT, num_parts
from erniecore_ops.parallel import memory_of, parallel_map, row_ranges

#: numbers that are widened at a time (64 MiB in float32); one row of the weight, or one expert, at least
CHUNK = 1 << 24


def frozen_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, transposed: bool = False) -> Tensor:
    """``x W + b`` with a frozen bfloat16 weight.

    Args:
        x: [.., I], float32. weight: bfloat16 [I, O], or [O, I] when ``transposed``. bias: [O].
    Returns:
        [.., O] in float32. The backward pass keeps nothing but the weight itself.
    Raises:
        ValueError: the weight has a gradient or is not bfloat16.
    """
    _check(weight)
    y: Tensor = _matmul(x.reshape([-1, x.shape[-1]]), weight, None, transposed)
    y = y.reshape([*x.shape[:-1], y.shape[-1]])
    return y if bias is None else y + bias


def frozen_grouped_linear(x: Tensor, weight: Tensor, routes: Routes, *, transposed: bool = False) -> Tensor:
    """``y[n] = x[n] W[e(n)]`` with e(n) the expert of sorted row n and frozen bfloat16 weights.

    Args:
        x: [N, I], float32. weight: bfloat16 [E, I, O], or [E, O, I] when ``transposed``.
    Returns:
        [N, O] in float32.
    Raises:
        ValueError: the weight has a gradient or is not bfloat16.
    """
    _check(weight)
    return _matmul(x, weight, routes, transposed)


def exact_bfloat16(weight: Tensor) -> Tensor | None:
    """The values of a float32 ``weight`` [N, ..] in bfloat16, frozen; None where that would change any."""
    if weight.dtype != paddle.float32 or not weight.size:
        return None
    if not weight.place.is_cpu_place():
        rounded: Tensor = weight.detach().astype("bfloat16")
        return rounded if bool((rounded.astype("float32") == weight).all()) else None
    values, halves = memory_of(weight.detach().contiguous()), np.empty(weight.shape, np.uint16)

    def narrow(rows: tuple[int, int]) -> bool:
        bits = values[slice(*rows)].view(np.uint32)
        halves[slice(*rows)] = bits >> 16
        return not (bits & 0xFFFF).any()

    pieces = row_ranges(weight.shape[0], weight.size // weight.shape[0])
    if not all(parallel_map(narrow, pieces, weight)):
        return None
    found: Tensor = paddle.utils.dlpack.from_dlpack(halves.view(np.int16)).view("bfloat16")
    found.stop_gradient = True
    return found


def _check(weight: Tensor) -> None:
    if weight.dtype != paddle.bfloat16 or not weight.stop_gradient:
        learned = "" if weight.stop_gradient else " that learns"
        raise ValueError(f"the weight must be frozen and bfloat16, found {weight.dtype}{learned}")


def _matmul(x: Tensor, weight: Tensor, routes: Routes | None, transposed: bool) -> Tensor:
    if paddle.is_grad_enabled() and not x.stop_gradient:
        y: Tensor = _Matmul.apply(x, weight, routes, transposed)
        return y
    return _multiply(x.detach(), weight, routes, transposed)


def _multiply(x: Tensor, weight: Tensor, routes: Routes | None, transposed: bool) -> Tensor:
    x, weight = x.contiguous(), weight.detach()
    if routes is None:
        return bfloat16_matmul(x, weight, transposed, num_parts())
    return bfloat16_grouped_matmul(x, weight, routes, transposed, num_parts())


class _Matmul(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, routes: Routes | None, transposed: bool) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.routes, ctx.transposed = routes, transposed
        return _multiply(x.detach(), weight, routes, transposed)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensor()
        return _multiply(dy.detach(), weight, ctx.routes, not ctx.transposed), None


@replaceable
def bfloat16_matmul(x: Tensor, weight: Tensor, transposed: bool, parts: int = EXACT) -> Tensor:
    """``x W`` for [I, O], ``x Wᵀ`` for [O, I]: [N, I] -> [N, O], without a gradient. At most ``CHUNK`` numbers of W are
    widened at a time. A kernel may make each number of x of so many bfloat16 ones; here nothing is rounded."""
    rows, columns = weight.shape
    step = max(1, CHUNK // max(columns, 1))
    pieces, total = [], None
    for start in range(0, rows, step):
        some = weight[start : start + step].astype(x.dtype)
        if transposed:
            pieces.append(paddle.matmul(x, some, transpose_y=True))
        else:
            part = paddle.matmul(x[:, start : start + step], some)
            total = part if total is None else total.add_(part)
    if total is not None:
        return total
    return pieces[0] if len(pieces) == 1 else paddle.concat(pieces, axis=-1)


@replaceable
def bfloat16_grouped_matmul(x: Tensor, weight: Tensor, routes: Routes, transposed: bool, parts: int = EXACT) -> Tensor:
    """Rows [N, I] sorted by expert, each through its expert's matrix: [N, O]. Experts without rows are not widened."""
    _, rows, columns = weight.shape
    if not routes.experts:
        return paddle.zeros([0, rows if transposed else columns], x.dtype)
    step, pieces = max(1, CHUNK // max(rows * columns, 1)), []
    for first in range(0, len(routes.experts), step):
        chosen = routes.experts[first : first + step]
        start = chosen[0].rows.start
        widened = paddle.stack([weight[part.expert] for part in chosen]).astype(x.dtype)
        those = [Part(i, slice(p.rows.start - start, p.rows.stop - start)) for i, p in enumerate(chosen)]
        pieces.append(grouped_matmul(x[start : chosen[-1].rows.stop], widened, those, transposed=transposed))
    return pieces[0] if len(pieces) == 1 else paddle.concat(pieces)
