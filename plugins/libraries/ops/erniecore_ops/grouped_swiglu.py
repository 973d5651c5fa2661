"""The routed experts of a mixture-of-experts layer: sort by expert, one SwiGLU per expert, add back. No router here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor
from paddle.autograd import PyLayer

from erniecore_ops._frozen import frozen
from erniecore_ops.kernels import replaceable
from erniecore_ops.parallel import parallel_map, row_ranges
from erniecore_ops.swiglu import swiglu_backward, swiglu_forward

#: Rows of one expert that are worked on at a time.
ROWS = 512


def grouped_swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """``y[t] = sum_j weights[t, j] * (silu(x[t] gate[e]) * (x[t] up[e])) down[e]`` with e = experts[t, j].

    No capacity: every assignment is computed, except those to expert -1. Gradients reach x, the three weights
    and ``weights``. Cost follows the number of assignments, not E.

    Args:
        x: [T, H]. gate, up: [E, H, I]. down: [E, I, H]. experts: integers [T, k], -1 = dropped.
        weights: float32 [T, k].
    Returns:
        [T, H] in ``x``'s dtype.
    Raises:
        ValueError: an expert outside -1 .. E - 1.
    Source: Gale et al., "MegaBlocks" (2022) for the dropless dispatch.
    """
    if not paddle.is_grad_enabled():
        return decode_experts(x, gate, up, down, experts, weights)
    return _learned(x, gate, up, down, experts, weights)


def _learned(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    routes = make_routes(experts.numpy(), gate.shape[0])
    y: Tensor = _GroupedSwiGLU.apply(x, gate, up, down, weights.astype(x.dtype), routes)
    return y


@replaceable
def decode_experts(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """:func:`grouped_swiglu` on tensors without gradient; a kernel may take few tokens only."""
    return _learned(x, gate, up, down, experts, weights)


class Part(NamedTuple):
    """Some sorted rows that go to one expert."""

    expert: int
    rows: slice


class Routes(NamedTuple):
    """Assignments sorted by expert, N of them.

    Attributes:
        tokens: [N] token of each sorted row. slots: [N] its place in [T * k].
        places: k tensors [T]: sorted row of the token's j-th assignment; N (a row of zeros) where it was dropped.
        experts: all rows of each expert that has any; ``parts``: the same in pieces of at most ROWS.
        starts: int64 [E + 1], the first row of each expert, and N.
    """

    tokens: Tensor
    slots: Tensor
    places: list[Tensor]
    experts: list[Part]
    parts: list[Part]
    starts: NDArray[np.int64]


def make_routes(experts_Tk: NDArray[Any], num_experts: int) -> Routes:
    """Sort assignments [T, k] by expert; raises ``ValueError`` for an expert outside -1 .. num_experts - 1."""
    T, k = experts_Tk.shape
    flat = experts_Tk.reshape(-1)
    if flat.size and (flat.min() < -1 or flat.max() >= num_experts):
        raise ValueError(f"experts must be in -1 .. {num_experts - 1}, found {flat.min()} .. {flat.max()}")
    narrow = flat.astype(np.int16) if num_experts < 1 << 15 else flat  # 16-bit keys are sorted by radix
    order = np.argsort(narrow, kind="stable")
    counts = np.bincount(flat + 1, minlength=num_experts + 1)
    order = order[counts[0] :]
    places = np.full(T * k, len(order), np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    by_choice = np.ascontiguousarray(places.reshape(T, k).T)
    starts = np.concatenate([[0], np.cumsum(counts[1:])]).astype(np.int64)
    bounds = starts.tolist()
    groups = [Part(e, slice(bounds[e], bounds[e + 1])) for e in range(num_experts) if bounds[e + 1] > bounds[e]]
    parts = [
        Part(e, slice(start, min(start + ROWS, rows.stop)))
        for e, rows in groups
        for start in range(rows.start, rows.stop, ROWS)
    ]
    tokens, slots = (paddle.to_tensor(a.astype(np.int32)) for a in (order // k, order))
    return Routes(tokens, slots, [paddle.to_tensor(column) for column in by_choice], groups, parts, starts)


class _GroupedSwiGLU(PyLayer):  # type: ignore[misc]
    """Keeps both products of each sorted row, N of them, and makes the rest again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, up: Tensor, down: Tensor, weights: Tensor, routes: Routes) -> Tensor:
        plain = x.detach(), gate.detach(), up.detach(), down.detach(), weights.detach()
        y, gate_NI, up_NI = grouped_swiglu_forward(*plain, routes)
        ctx.save_for_backward(x, gate, up, down, weights, gate_NI, up_NI)
        ctx.routes, ctx.frozen = routes, frozen(x, gate, up, down, weights)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, up, down, weights, gate_NI, up_NI = (t.detach() for t in ctx.saved_tensor())
        inputs, wanted = (x, gate, up, down, weights), [not skip for skip in ctx.frozen]
        if gate_NI.shape[0] == 0:
            return tuple(paddle.zeros_like(w) if yes else None for yes, w in zip(wanted, inputs, strict=True))
        return grouped_swiglu_backward(*inputs, gate_NI, up_NI, dy.detach(), ctx.routes, wanted)


@replaceable
def grouped_swiglu_forward(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, weights: Tensor, routes: Routes
) -> tuple[Tensor, Tensor, Tensor]:
    """On tensors without gradient: y [T, H], and x gate and x up of every sorted row, [N, I] each.

    Each token's weight multiplies the activation, which is narrower than the output.
    """
    num_rows, dtype = routes.tokens.shape[0], x.dtype
    gate_NI, up_NI = (paddle.empty([num_rows, gate.shape[2]], dtype) for _ in range(2))
    out_NH = paddle.zeros([num_rows + 1, x.shape[1]], dtype)
    if num_rows:
        x_NH, w_N1 = _sorted_rows(x, weights, routes)

        def widen(part: Part) -> None:
            e, rows = part
            x_part = x_NH[rows]
            paddle.matmul(x_part, gate[e], out=gate_NI[rows])
            paddle.matmul(x_part, up[e], out=up_NI[rows])

        parallel_map(widen, routes.parts, x_NH)
        act_NI = swiglu_forward(gate_NI, up_NI, w_N1)
        parallel_map(
            lambda part: paddle.matmul(act_NI[part.rows], down[part.expert], out=out_NH[part.rows]),
            routes.parts,
            x_NH,
        )
    return add_back(out_NH, routes.places), gate_NI, up_NI


@replaceable
def grouped_swiglu_backward(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    weights: Tensor,
    gate_NI: Tensor,
    up_NI: Tensor,
    dy: Tensor,
    routes: Routes,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of x, gate, up, down and weights, ``None`` where ``wanted`` says no; at least one row."""
    num_rows, dtype = gate_NI.shape[0], x.dtype
    grads = [paddle.empty_like(w) if yes else None for yes, w in zip(wanted, (x, gate, up, down, weights), strict=True)]
    _clear_unused(grads[1:4], routes)
    x_NH, w_N1 = _sorted_rows(x, weights, routes)
    dy_NH = paddle.gather(dy, routes.tokens)
    dw_N1 = paddle.zeros([num_rows + 1, 1], dtype)
    d_act_NI = paddle.empty([num_rows, gate_NI.shape[1]], dtype)
    parallel_map(
        lambda part: paddle.matmul(dy_NH[part.rows], down[part.expert], transpose_y=True, out=d_act_NI[part.rows]),
        routes.parts,
        x_NH,
    )
    act_NI = swiglu_forward(gate_NI, up_NI)
    paddle.matmul(d_act_NI * act_NI, paddle.ones([d_act_NI.shape[1], 1], dtype), out=dw_N1[:num_rows])
    w_NI = paddle.matmul(w_N1, paddle.ones([1, d_act_NI.shape[1]], dtype))  # faster than two broadcasts
    act_NI, d_act_NI = act_NI.multiply_(w_NI), d_act_NI.multiply_(w_NI)
    d_gate_NI, d_up_NI = swiglu_backward(gate_NI, up_NI, d_act_NI)

    def sum_rows(part: Part) -> None:
        e, rows = part
        x_part = x_NH[rows]
        sides = ((x_part, d_gate_NI[rows]), (x_part, d_up_NI[rows]), (act_NI[rows], dy_NH[rows]))
        for (left, right), total in zip(sides, grads[1:4], strict=True):
            if total is not None:
                paddle.matmul(left, right, transpose_x=True, out=total[e])

    if grads[0] is not None:
        grads[0] = add_back(_narrowed(gate, up, d_gate_NI, d_up_NI, routes), routes.places)
    parallel_map(sum_rows, routes.experts, x_NH)
    if grads[4] is not None:
        grads[4] = paddle.stack([paddle.gather(dw_N1, place).squeeze(-1) for place in routes.places], axis=1)
    return tuple(grads)


def _narrowed(gate: Tensor, up: Tensor, d_gate_NI: Tensor, d_up_NI: Tensor, routes: Routes) -> Tensor:
    """Gradient of x of every sorted row, and a row of zeros."""
    dx_NH = paddle.zeros([d_gate_NI.shape[0] + 1, gate.shape[1]], gate.dtype)

    def narrow(part: Part) -> None:
        e, rows = part
        dx = paddle.matmul(d_gate_NI[rows], gate[e], transpose_y=True)
        paddle.add(dx, paddle.matmul(d_up_NI[rows], up[e], transpose_y=True), out=dx_NH[rows])

    parallel_map(narrow, routes.parts, dx_NH)
    return dx_NH


def _clear_unused(totals: list[Tensor | None], routes: Routes) -> None:
    """Zeros for the experts [E, ...] that no row goes to; the others are written whole."""
    used = {part.expert for part in routes.experts}
    for total in totals:
        if total is not None:
            for e in range(total.shape[0]):
                if e not in used:
                    total[e].zero_()


def _sorted_rows(x: Tensor, weights: Tensor, routes: Routes) -> tuple[Tensor, Tensor]:
    """Tokens [N, H] and their weights [N, 1], in the order of the experts."""
    flat = weights.reshape([-1, 1])
    return paddle.gather(x, routes.tokens), paddle.gather(flat, routes.slots)


def add_back(rows_NH: Tensor, places: list[Tensor]) -> Tensor:
    """``y[t] = sum_j rows[places[j][t]]``, always in the order of j."""
    y = paddle.gather(rows_NH, places[0])

    def piece(tokens: tuple[int, int]) -> None:
        part = y[tokens[0] : tokens[1]]
        for place in places[1:]:
            part.add_(paddle.gather(rows_NH, place[tokens[0] : tokens[1]]))

    if len(places) > 1:
        parallel_map(piece, row_ranges(*y.shape), y)
    return y
