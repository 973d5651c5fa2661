"""The routed experts for a few tokens on Paddle's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, team

#: Assignments beyond which matrix products, which read an expert once for all of its tokens, are faster.
MOST = 64


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """Kernels that replace ``decode_experts`` of ``erniecore_ops``."""
    run_ = function(library, "decode_experts", [POINTER] * 7 + [SIZE] * 5 + [COUNT], COUNT)

    def decode_experts(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        (T, k), (E, H, I) = experts.shape, gate.shape  # noqa: E741
        y = paddle.empty_like(x)
        parts = (t.data_ptr() for t in (x, gate, up, down, experts, weights, y))
        status = run_(*parts, T, k, E, H, I, team(threads, T * k * H * I))
        if status == 1:
            raise ValueError(f"experts must be in -1 .. {E - 1}, found {experts.tolist()}")
        if status:
            raise MemoryError(f"no memory for {T * k} x {I} activations")
        return y

    def supports(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, experts: Tensor, weights: Tensor) -> bool:
        (T, H), (E, _, I) = x.shape, gate.shape  # noqa: E741
        fits = gate.shape == up.shape == [E, H, I] and down.shape == [E, I, H]
        fits = fits and 0 < experts.size <= MOST and experts.shape == weights.shape and experts.shape[0] == T
        listed = experts.dtype == paddle.int64 and experts.is_contiguous()
        return fits and listed and plain(x, gate, up, down, weights)

    return {"decode_experts": Kernel(decode_experts, supports)}
