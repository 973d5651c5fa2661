"""SwiGLU on Paddle's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, pointer, team


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """``swiglu_forward`` and ``swiglu_backward`` of ``erniecore_ops``."""
    forward_ = function(library, "swiglu_forward", [POINTER] * 4 + [SIZE] * 2 + [COUNT])
    backward_ = function(library, "swiglu_backward", [POINTER] * 5 + [SIZE] * 2 + [COUNT])

    def forward(gate: Tensor, up: Tensor, factor: Tensor | None = None) -> Tensor:
        I = gate.shape[-1]  # noqa: E741
        y = paddle.empty_like(gate)
        T, count = y.size // I, team(threads, y.size)
        forward_(gate.data_ptr(), up.data_ptr(), pointer(factor), y.data_ptr(), T, I, count)
        return y

    def backward(gate: Tensor, up: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        I = gate.shape[-1]  # noqa: E741
        d_gate, d_up = paddle.empty_like(gate), paddle.empty_like(gate)
        parts = (x.data_ptr() for x in (gate, up, dy, d_gate, d_up))
        backward_(*parts, gate.size // I, I, team(threads, gate.size))
        return d_gate, d_up

    def can_forward(gate: Tensor, up: Tensor, factor: Tensor | None = None) -> bool:
        fits = gate.shape == up.shape and (factor is None or factor.size * gate.shape[-1] == gate.size)
        return fits and plain(gate, up, factor)

    def can_backward(gate: Tensor, up: Tensor, dy: Tensor) -> bool:
        return gate.shape == up.shape == dy.shape and plain(gate, up, dy)

    return {"swiglu_forward": Kernel(forward, can_forward), "swiglu_backward": Kernel(backward, can_backward)}
