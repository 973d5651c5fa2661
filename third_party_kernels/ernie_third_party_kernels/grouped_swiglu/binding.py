"""The routed experts, forward and backward, on Paddle's tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, POINTER, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, pointer, team

#: Elements of a matrix that stay in a core's cache with a block of rows. Larger ones are left to matrix products that copy
#: operands into an order of their own, where an expert has enough rows to be worth it.
SMALL, FEW_ROWS = 1 << 20, 96


def kernels(library: ctypes.CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """``grouped_swiglu_forward`` and ``grouped_swiglu_backward`` of ``erniecore_ops``."""
    forward_ = function(library, "grouped_swiglu_forward", [POINTER] * 14 + [COUNT], COUNT)
    backward_ = function(library, "grouped_swiglu_backward", [POINTER] * 22 + [COUNT], COUNT)
    return {
        "grouped_swiglu_forward": Kernel(_forward(forward_, threads), _can_forward),
        "grouped_swiglu_backward": Kernel(_backward(backward_, threads), _can_backward),
    }


def _forward(function: Callable[..., int], threads: Threads) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def forward(
        x: Tensor, gate: Tensor, up: Tensor, down: Tensor, weights: Tensor, routes: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        (H, I), N = gate.shape[1:], routes.tokens.shape[0]  # noqa: E741
        y, rows_NH = paddle.empty_like(x), paddle.empty([N, H])
        gate_NI, up_NI = paddle.empty([N, I]), paddle.empty([N, I])
        inputs = (pointer(t) for t in (x, gate, up, down, weights))
        results = (pointer(t) for t in (rows_NH, gate_NI, up_NI, y))
        if function(*inputs, *_where(routes), *results, _sizes(gate, weights, N), team(threads, N * H * I)):
            raise MemoryError(f"no memory for blocks of {N} rows of {H} and {I} elements")
        return y, gate_NI, up_NI

    return forward


def _backward(function: Callable[..., int], threads: Threads) -> Callable[..., tuple[Tensor | None, ...]]:
    def backward(
        x: Tensor,
        gate: Tensor,
        up: Tensor,
        down: Tensor,
        weights: Tensor,
        gate_NI: Tensor,
        up_NI: Tensor,
        dy: Tensor,
        routes: Any,
        wanted: Sequence[bool],
    ) -> tuple[Tensor | None, ...]:
        H, (N, I) = gate.shape[1], gate_NI.shape  # noqa: E741
        inputs = x, gate, up, down
        grads = [paddle.empty_like(t) if is_wanted else None for t, is_wanted in zip(inputs, wanted, strict=False)]
        grads.append(paddle.zeros_like(weights) if wanted[4] else None)  # dropped assignments have no row
        rows_NH = paddle.empty([N, H]) if wanted[0] else None
        scratch = [paddle.empty([N, I]) if any(wanted[1:4]) else None for _ in range(3)]
        given = (pointer(t) for t in (*inputs, weights, gate_NI, up_NI, dy))
        made = (pointer(t) for t in (rows_NH, *scratch, *grads))
        if function(*given, *_where(routes), *made, _sizes(gate, weights, N), team(threads, N * H * I)):
            raise MemoryError(f"no memory for the gradients of blocks of {N} rows of {H} and {I} elements")
        return tuple(grads)

    return backward


def _can_forward(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, weights: Tensor, routes: Any) -> bool:
    (T, H), (E, _, I) = x.shape, gate.shape  # noqa: E741
    fits = gate.shape == up.shape == [E, H, I] and down.shape == [E, I, H] and weights.shape == [T, len(routes.places)]
    N = routes.tokens.shape[0]
    fits = fits and H % 16 == 0 == I % 16 and len(routes.starts) == E + 1
    return fits and N > 0 and (H * I <= SMALL or N <= FEW_ROWS * E) and plain(x, gate, up, down, weights)


def _can_backward(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    weights: Tensor,
    gate_NI: Tensor,
    up_NI: Tensor,
    dy: Tensor,
    routes: Any,
    wanted: Sequence[bool],
) -> bool:
    return _can_forward(x, gate, up, down, weights, routes) and dy.shape == x.shape and plain(gate_NI, up_NI, dy)


def _where(routes: Any) -> tuple[Any, ...]:
    """Token and slot of each row, the first row of each expert, and a list of the rows of each choice."""
    places = (ctypes.c_void_p * len(routes.places))(*(pointer(place) for place in routes.places))
    return pointer(routes.tokens), pointer(routes.slots), routes.starts.ctypes.data, places


def _sizes(gate: Tensor, weights: Tensor, rows: int) -> Any:
    return (ctypes.c_int64 * 6)(*weights.shape, *gate.shape, rows)
