"""Matmuls with quantized weights on Paddle's tensors. ``QuantizedMatrix`` and ``Routes`` are erniecore's; only their
attributes are read here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import CDLL
from functools import lru_cache
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.code_weights import matmul as ccq_matmul
from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.packed_rows.matmul import QUANT_DTYPES, Matmul, matmul_of, splits
from ernie_third_party_kernels.tensors import Kernel, Threads, cover, parts_of, plain, team

#: Rows, per expert on average, of which float32's precision is kept; more are rounded to 15 bits where they are split.
FINE_ROWS = 64
#: Rows that are multiplied as they are; more are multiplied by panels of the matrix (`packed_rows`).
FEW_ROWS = 64
#: The same where panels are multiplied in whole numbers that keep float32's precision, which is faster from fewer rows on.
FEW_SPLIT = 8


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """``dequantize``, ``quantized_matmul``, ``quantized_grouped_matmul`` and their backward passes of ``erniecore_ops``."""
    matmul_ = function(
        library, "packed_product", [COUNT, POINTER, POINTER, SIZE] + [POINTER] * 3 + [SIZE] * 3 + [POINTER, COUNT]
    )
    dequantize_ = function(library, "packed_numbers", [COUNT, POINTER, POINTER, SIZE] + [SIZE] * 3 + [POINTER, COUNT])

    convolutional = ccq_matmul.calls(library, threads)

    def dequantize(weight: Any) -> Tensor:
        if weight.quant_dtype in ccq_matmul.QUANT_DTYPES:
            return convolutional.dequantize(weight)
        stack = weight.qweight.shape[:-2]
        E, I, O = stack[0] if stack else 1, weight.qweight.shape[-1], weight.outputs  # noqa: E741
        w = paddle.empty([*stack, O, I], "float32")
        parts = QUANT_DTYPES[weight.quant_dtype], weight.qweight.data_ptr(), weight.scales.data_ptr(), weight.group
        dequantize_(*parts, E, I, O, w.data_ptr(), team(threads, E * I * O))
        return w

    def matmul(x: Tensor, weight: Any, experts: Any, starts: Any) -> Tensor:
        if weight.quant_dtype in ccq_matmul.QUANT_DTYPES:
            return convolutional.matmul(x, weight, experts, starts)
        N, I, O = x.shape[0], x.shape[1], weight.outputs  # noqa: E741
        y = paddle.empty([N, O], "float32")
        stored = QUANT_DTYPES[weight.quant_dtype], weight.qweight.data_ptr(), weight.scales.data_ptr(), weight.group
        where = None if experts is None else experts.ctypes.data, starts.ctypes.data, len(starts) - 1
        matmul_(*stored, x.data_ptr(), *where, I, O, y.data_ptr(), team(threads, N * I * O))
        return y

    split = lru_cache(maxsize=None)(lambda *form: splits(library, *form, back=False, fine=True))

    def few_rows(weight: Any) -> int:
        return FEW_SPLIT if _is_coded(weight) and split(weight.quant_dtype, weight.group) else FEW_ROWS

    return {"dequantize": Kernel(dequantize, _stored), **_by_rows(matmul, matmul_of(library, threads), few_rows)}


def _by_rows(few: Matmul, many: Matmul, few_rows: Callable[[Any], int]) -> dict[str, Kernel]:
    """Both matmuls and their gradients: ``few`` multiplies up to ``few_rows`` of a weight as they are, ``many`` by panels of
    the matrix."""

    def product(x: Tensor, weight: Any) -> Tensor:
        rows = x.shape[0]
        if rows <= few_rows(weight):
            return few(x, weight, None, _all_rows(x))
        return many(x, weight, None, _all_rows(x), fine=rows <= FINE_ROWS)

    def back(dy: Tensor, weight: Any) -> Tensor:
        return many(dy, weight, None, _all_rows(dy), back=True, fine=dy.shape[0] <= FINE_ROWS)

    def grouped(x: Tensor, weight: Any, routes: Any) -> Tensor:
        parts = parts_of(routes.experts)
        if _are_few(x, routes, few_rows(weight)):
            return few(x, weight, *parts)
        return many(x, weight, *parts, fine=_are_few(x, routes, FINE_ROWS))

    def grouped_back(dy: Tensor, weight: Any, routes: Any) -> Tensor:
        return many(dy, weight, *parts_of(routes.experts), back=True, fine=_are_few(dy, routes, FINE_ROWS))

    def can_back(dy: Tensor, weight: Any) -> bool:
        return _is_coded(weight) and _can_product(dy, weight, weight.outputs)

    def can_grouped_back(dy: Tensor, weight: Any, routes: Any) -> bool:
        return _is_coded(weight) and _can_grouped(dy, weight, routes, weight.outputs)

    return {
        "quantized_matmul": Kernel(product, lambda x, weight: _can_product(x, weight, weight.inputs)),
        "quantized_matmul_backward": Kernel(back, can_back),
        "quantized_grouped_matmul": Kernel(
            grouped, lambda x, weight, routes: _can_grouped(x, weight, routes, weight.inputs)
        ),
        "quantized_grouped_matmul_backward": Kernel(grouped_back, can_grouped_back),
    }


def _all_rows(x: Tensor) -> Any:
    return np.array([0, x.shape[0]], np.int64)


def _are_few(x: Tensor, routes: Any, rows: int) -> bool:
    return bool(x.shape[0] <= rows * len(routes.experts))


def _is_coded(weight: Any) -> bool:
    return weight.quant_dtype in QUANT_DTYPES


def _can_product(x: Tensor, weight: Any, width: int) -> bool:
    rows = x.shape[0]
    return rows > 0 and (rows <= FEW_ROWS or _is_coded(weight)) and weight.qweight.ndim == 2 and _fits(x, weight, width)


def _can_grouped(x: Tensor, weight: Any, routes: Any, width: int) -> bool:
    if not x.shape[0] or not (_is_coded(weight) or _are_few(x, routes, FEW_ROWS)):
        return False
    whole = weight.qweight.ndim == 3 and _fits(x, weight, width)
    return whole and cover(routes.experts, x.shape[0], weight.qweight.shape[0])


def _fits(x: Tensor, weight: Any, width: int) -> bool:
    return x.ndim == 2 and plain(x) and _stored(weight) and x.shape[1] == width


def _stored(weight: Any) -> bool:
    """Whether quantized values and scales have the layout that the kernel reads."""
    if weight.quant_dtype in ccq_matmul.QUANT_DTYPES:
        return ccq_matmul.fits(weight)
    qweight, scales, O = weight.qweight, weight.scales, weight.outputs  # noqa: E741
    rows = O if weight.quant_dtype == "int8" else (O + 1) // 2
    groups = [-(-qweight.shape[-1] // weight.group)] if weight.group else []
    shapes = qweight.shape[-2] == rows and scales.shape == [*qweight.shape[:-2], O, *groups] and qweight.ndim in (2, 3)
    return (
        weight.quant_dtype in QUANT_DTYPES
        and shapes
        and qweight.dtype == paddle.int8
        and qweight.is_contiguous()
        and plain(scales)
    )
