"""Softmax of rows, in place, on Paddle's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL

from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, pointer, team


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """Kernels that replace ``softmax_rows_`` of ``erniecore_ops``."""
    softmax_ = function(library, "softmax", [POINTER] * 3 + [SIZE] * 3 + [COUNT])

    def softmax_rows_(scores: Tensor, hidden: Tensor | None = None, alive: Tensor | None = None) -> Tensor:
        T, N = scores.shape
        masked = 0 if hidden is None else hidden.shape[1]
        parts = scores.data_ptr(), pointer(hidden), pointer(alive)
        softmax_(*parts, T, N, masked, team(threads, scores.size))
        return scores

    def supports(scores: Tensor, hidden: Tensor | None = None, alive: Tensor | None = None) -> bool:
        T, N = scores.shape
        fits = (hidden is None or (hidden.shape[0] == T and hidden.shape[1] <= N)) and (
            alive is None or alive.size == T
        )
        return fits and scores.size > 0 and plain(scores, hidden, alive)

    return {"softmax_rows_": Kernel(softmax_rows_, supports)}
