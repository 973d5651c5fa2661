"""Matmuls with quantized weights on Paddle's tensors. ``QuantizedMatrix`` and ``Routes`` are erniecore's; only their
attributes are read here."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL
from itertools import pairwise
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.code_weights import matmul as ccq_matmul
from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, team

QUANT_DTYPES = {"int8": 0, "int4": 1, "nf4": 2}
#: Rows beyond which dequantizing once and a BLAS matmul are faster; per expert, on average.
MOST_ROWS = 64


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """``dequantize``, ``quantized_matmul`` and ``quantized_grouped_matmul`` of ``erniecore_ops``."""
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

    def product(x: Tensor, weight: Any) -> Tensor:
        return matmul(x, weight, None, np.array([0, x.shape[0]], np.int64))

    def grouped(x: Tensor, weight: Any, routes: Any) -> Tensor:
        experts = np.array([part.expert for part in routes.experts], np.int64)
        starts = np.array([0, *(part.rows.stop for part in routes.experts)], np.int64)
        return matmul(x, weight, experts, starts)

    return {
        "dequantize": Kernel(dequantize, _stored),
        "quantized_matmul": Kernel(product, _can_product),
        "quantized_grouped_matmul": Kernel(grouped, _can_grouped),
    }


def _can_product(x: Tensor, weight: Any) -> bool:
    return 0 < x.shape[0] <= MOST_ROWS and weight.qweight.ndim == 2 and _fits(x, weight)


def _can_grouped(x: Tensor, weight: Any, routes: Any) -> bool:
    few = 0 < x.shape[0] <= MOST_ROWS * len(routes.experts)
    ends = [0, *(part.rows.stop for part in routes.experts)]
    whole = ends[-1] == x.shape[0] and all(
        part.rows.start == start for part, (start, _) in zip(routes.experts, pairwise(ends), strict=True)
    )
    known = all(0 <= part.expert < weight.qweight.shape[0] for part in routes.experts)
    return few and whole and known and weight.qweight.ndim == 3 and _fits(x, weight)


def _fits(x: Tensor, weight: Any) -> bool:
    return x.ndim == 2 and plain(x) and _stored(weight) and x.shape[1] == weight.inputs


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
