"""Products with packed weights on Paddle's tensors. ``PackedMatrix`` and ``Routes`` are erniecore's; only their attributes
are read here."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL
from itertools import pairwise
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.code_weights import products
from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, team

FORMS = {"int8": 0, "int4": 1, "nf4": 2}
#: Rows beyond which unpacking once and a matrix product of BLAS are faster; per expert, on average.
MOST_ROWS = 64


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """``packed_numbers``, ``packed_product`` and ``packed_grouped_product`` of ``erniecore.ops``."""
    product_ = function(
        library, "packed_product", [COUNT, POINTER, POINTER, SIZE] + [POINTER] * 3 + [SIZE] * 3 + [POINTER, COUNT]
    )
    numbers_ = function(library, "packed_numbers", [COUNT, POINTER, POINTER, SIZE] + [SIZE] * 3 + [POINTER, COUNT])

    codes = products.calls(library, threads)

    def numbers(weight: Any) -> Tensor:
        if weight.form in products.FORMS:
            return codes.numbers(weight)
        stack = weight.codes.shape[:-2]
        E, I, O = stack[0] if stack else 1, weight.codes.shape[-1], weight.outputs  # noqa: E741
        w = paddle.empty([*stack, O, I], "float32")
        parts = FORMS[weight.form], weight.codes.data_ptr(), weight.scales.data_ptr(), weight.group
        numbers_(*parts, E, I, O, w.data_ptr(), team(threads, E * I * O))
        return w

    def multiply(x: Tensor, weight: Any, experts: Any, starts: Any) -> Tensor:
        if weight.form in products.FORMS:
            return codes.multiply(x, weight, experts, starts)
        N, I, O = x.shape[0], x.shape[1], weight.outputs  # noqa: E741
        y = paddle.empty([N, O], "float32")
        stored = FORMS[weight.form], weight.codes.data_ptr(), weight.scales.data_ptr(), weight.group
        where = None if experts is None else experts.ctypes.data, starts.ctypes.data, len(starts) - 1
        product_(*stored, x.data_ptr(), *where, I, O, y.data_ptr(), team(threads, N * I * O))
        return y

    def product(x: Tensor, weight: Any) -> Tensor:
        return multiply(x, weight, None, np.array([0, x.shape[0]], np.int64))

    def grouped(x: Tensor, weight: Any, routes: Any) -> Tensor:
        experts = np.array([part.expert for part in routes.experts], np.int64)
        starts = np.array([0, *(part.rows.stop for part in routes.experts)], np.int64)
        return multiply(x, weight, experts, starts)

    return {
        "packed_numbers": Kernel(numbers, _stored),
        "packed_product": Kernel(product, _can_product),
        "packed_grouped_product": Kernel(grouped, _can_grouped),
    }


def _can_product(x: Tensor, weight: Any) -> bool:
    return 0 < x.shape[0] <= MOST_ROWS and weight.codes.ndim == 2 and _fits(x, weight)


def _can_grouped(x: Tensor, weight: Any, routes: Any) -> bool:
    few = 0 < x.shape[0] <= MOST_ROWS * len(routes.experts)
    ends = [0, *(part.rows.stop for part in routes.experts)]
    whole = ends[-1] == x.shape[0] and all(
        part.rows.start == start for part, (start, _) in zip(routes.experts, pairwise(ends), strict=True)
    )
    known = all(0 <= part.expert < weight.codes.shape[0] for part in routes.experts)
    return few and whole and known and weight.codes.ndim == 3 and _fits(x, weight)


def _fits(x: Tensor, weight: Any) -> bool:
    return x.ndim == 2 and plain(x) and _stored(weight) and x.shape[1] == weight.inputs


def _stored(weight: Any) -> bool:
    """Whether codes and scales lie as the kernel reads them."""
    if weight.form in products.FORMS:
        return products.fits(weight)
    codes, scales, O = weight.codes, weight.scales, weight.outputs  # noqa: E741
    rows = O if weight.form == "int8" else (O + 1) // 2
    groups = [-(-codes.shape[-1] // weight.group)] if weight.group else []
    shapes = codes.shape[-2] == rows and scales.shape == [*codes.shape[:-2], O, *groups] and codes.ndim in (2, 3)
    return weight.form in FORMS and shapes and codes.dtype == paddle.int8 and codes.is_contiguous() and plain(scales)
