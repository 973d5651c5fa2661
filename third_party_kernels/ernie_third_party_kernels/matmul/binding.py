"""Products of float32 matrices by bfloat16 parts, on Paddle's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, team

#: Rows, columns and depth from which on tiles are worth their panels.
FEWEST = 32


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """``parts_matmul`` of ``erniecore_ops``; for processors with matrix tiles of bfloat16."""
    operands = [POINTER, COUNT] * 2
    call = function(library, "parts_matmul", [*operands, *[SIZE] * 3, POINTER, *[COUNT] * 3], COUNT)
    able = bool(function(library, "has_parts_matmul", [], COUNT)())

    def run(x: Tensor, y: Tensor, transpose_x: bool, transpose_y: bool, parts: int, total: Tensor | None) -> Tensor:
        (M, K), (_, N) = _sides(x, transpose_x), _sides(y, transpose_y)
        out = paddle.empty([M, N], "float32") if total is None else total
        given = x.data_ptr(), int(transpose_x), y.data_ptr(), int(transpose_y)
        if call(*given, M, N, K, out.data_ptr(), int(total is not None), parts, team(threads, M * N * K)):
            raise MemoryError(f"no memory for panels of a product of {M} by {K} and {K} by {N} numbers")
        return out

    def supports(x: Tensor, y: Tensor, transpose_x: bool, transpose_y: bool, parts: int, total: Tensor | None) -> bool:
        if not able or parts not in (1, 2) or not x.ndim == y.ndim == 2 or not plain(x, y, total):
            return False
        (M, K), (depth, N) = _sides(x, transpose_x), _sides(y, transpose_y)
        return depth == K and min(M, N, K) >= FEWEST and (total is None or total.shape == [M, N])

    return {"parts_matmul": Kernel(run, supports)}


def _sides(x: Tensor, transposed: bool) -> tuple[int, int]:
    rows, columns = x.shape
    return (columns, rows) if transposed else (rows, columns)
