"""Matmuls with weights that are kept in bfloat16, on Paddle's tensors. ``Routes`` are erniecore's; only attributes are read."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, cover, parts_of, plain, team


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """``bfloat16_matmul`` and ``bfloat16_grouped_matmul`` of ``erniecore_ops``."""
    call = function(library, "bfloat16_product", [COUNT] + [POINTER] * 4 + [SIZE] * 3 + [POINTER, COUNT, COUNT], COUNT)

    def multiply(x: Tensor, weight: Tensor, transposed: bool, parts: int, experts: Any, starts: Any) -> Tensor:
        N, (O, I) = x.shape[0], weight.shape[-2:]  # noqa: E741
        y = paddle.empty([N, O if transposed else I], "float32")
        where = None if experts is None else experts.ctypes.data, starts.ctypes.data, len(starts) - 1
        given = int(not transposed), weight.data_ptr(), x.data_ptr()
        if call(*given, *where, I, O, y.data_ptr(), parts, team(threads, N * I * O)):
            raise MemoryError(f"no memory for panels of a matrix of {I} by {O} numbers")
        return y

    def product(x: Tensor, weight: Tensor, transposed: bool, parts: int = 3) -> Tensor:
        return multiply(x, weight, transposed, parts, None, np.array([0, x.shape[0]], np.int64))

    def grouped(x: Tensor, weight: Tensor, routes: Any, transposed: bool, parts: int = 3) -> Tensor:
        return multiply(x, weight, transposed, parts, *parts_of(routes.experts))

    def can_product(x: Tensor, weight: Tensor, transposed: bool, parts: int = 3) -> bool:
        return 0 < parts <= 3 and weight.ndim == 2 and _fits(x, weight, transposed)

    def can_grouped(x: Tensor, weight: Tensor, routes: Any, transposed: bool, parts: int = 3) -> bool:
        fits = 0 < parts <= 3 and weight.ndim == 3 and _fits(x, weight, transposed)
        return fits and cover(routes.experts, x.shape[0], weight.shape[0])

    return {
        "bfloat16_matmul": Kernel(product, can_product),
        "bfloat16_grouped_matmul": Kernel(grouped, can_grouped),
    }


def _fits(x: Tensor, weight: Tensor, transposed: bool) -> bool:
    inputs = weight.shape[-1 if transposed else -2]
    whole = weight.dtype == paddle.bfloat16 and weight.is_contiguous() and min(weight.shape) > 0
    return whole and x.ndim == 2 and x.shape[0] > 0 and x.shape[1] == inputs and plain(x)
