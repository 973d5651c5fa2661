"""Rounding to FP8 on Paddle's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, team

QUANT_DTYPES = {"e4m3": 0, "e5m2": 1}


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """Kernels that replace ``fp8_quantize`` of ``erniecore_ops``."""
    run_ = function(library, "fp8_quantize", [COUNT, POINTER, POINTER, SIZE, SIZE, POINTER, SIZE, SIZE, COUNT])

    def fp8_quantize(x: Tensor, scale: Tensor, quant_dtype: str = "e4m3") -> Tensor:
        row_step, column_step = _steps(x, scale) or (0, 0)
        y, n = paddle.empty_like(x), x.shape[-1] if x.ndim else 1
        rows = x.size // n
        if rows == 1 and not column_step:  # threads share rows
            rows, n = (n // 64, 64) if n % 64 == 0 else (rows, n)
        parts = QUANT_DTYPES[quant_dtype], x.data_ptr(), scale.data_ptr(), row_step, column_step, y.data_ptr()
        run_(*parts, rows, n, team(threads, x.size))
        return y

    def supports(x: Tensor, scale: Tensor, quant_dtype: str = "e4m3") -> bool:
        return quant_dtype in QUANT_DTYPES and x.size > 0 and plain(x, scale) and _steps(x, scale) is not None

    return {"fp8_quantize": Kernel(fp8_quantize, supports)}


def _steps(x: Tensor, scale: Tensor) -> tuple[int, int] | None:
    """How far the next row's and the next column's scale are: one for all, one per row, or one per column."""
    if scale.size == 1 and scale.ndim <= x.ndim:
        return 0, 0
    if x.ndim and scale.shape == [*x.shape[:-1], 1]:
        return 1, 0
    if x.ndim and scale.size == x.shape[-1] == scale.shape[-1] and scale.ndim <= x.ndim:
        return 0, 1
    return None
