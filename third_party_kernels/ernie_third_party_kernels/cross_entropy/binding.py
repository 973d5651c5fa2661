"""Loss and slopes of logits, and sums of products, on Paddle's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import CDLL
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.blas import PLAIN, ROW_MAJOR, TURNED, sgemm
from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, team


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """``cross_entropy_rows_`` and ``add_matmul_`` of ``erniecore_ops``."""
    rows_ = function(library, "cross_entropy", [POINTER] * 3 + [SIZE] * 2 + [COUNT] * 2)

    def cross_entropy_rows_(logits: Tensor, piece: Any, again: Callable[[Tensor], Tensor], slopes: bool) -> Tensor:
        T, V = logits.shape
        loss = paddle.empty([T], "float32")
        parts = logits.data_ptr(), piece.labels.data_ptr(), loss.data_ptr()
        rows_(*parts, T, V, int(slopes), team(threads, logits.size))
        return loss

    def can_rows(logits: Tensor, piece: Any, again: Callable[[Tensor], Tensor], slopes: bool) -> bool:
        labels: Tensor = piece.labels
        fits = logits.ndim == 2 and logits.size > 0 and labels.shape == logits.shape[:1]
        return bool(fits and labels.dtype == paddle.int64 and plain(logits))

    return {"cross_entropy_rows_": Kernel(cross_entropy_rows_, can_rows), "add_matmul_": add_matmul()}


def add_matmul() -> Kernel:
    """total += leftᵀ right."""
    gemm = sgemm()

    def run(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
        depth, M = left.shape
        N = right.shape[1]
        operands = 1.0, left.data_ptr(), M, right.data_ptr(), N, 1.0, total.data_ptr(), N
        gemm(ROW_MAJOR, TURNED, PLAIN, M, N, depth, *operands)  # type: ignore[misc]
        return total

    def supports(total: Tensor, left: Tensor, right: Tensor) -> bool:
        fits = left.ndim == right.ndim == 2 and left.shape[0] == right.shape[0] > 0
        fits = fits and total.shape == [left.shape[1], right.shape[1]] and total.size > 0
        return gemm is not None and fits and plain(total, left, right)

    return Kernel(run, supports)
