"""Matmuls of many rows with quantized weights, and their gradients of the rows, on Paddle's tensors: for ``packed_weights``."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CDLL
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Threads, team

QUANT_DTYPES = {"int8": 0, "int4": 1, "nf4": 2}

#: ``matmul(x, weight, experts, starts, back=, exact=)``: experts and starts as in ``packed_weights``; ``exact`` multiplies
#: the rows as they are, also where they would be split
Matmul = Callable[..., Tensor]


def matmul_of(library: CDLL, threads: Threads) -> Matmul:
    """The function, bound to the kernels of ``library``."""
    arguments = [COUNT] * 3 + [POINTER, POINTER, SIZE] + [POINTER] * 3 + [SIZE] * 3 + [POINTER, COUNT]
    call = function(library, "packed_rows", arguments, COUNT)

    def matmul(x: Tensor, weight: Any, experts: Any, starts: Any, *, back: bool = False, exact: bool = False) -> Tensor:
        N, I, O = x.shape[0], weight.inputs, weight.outputs  # noqa: E741
        y = paddle.empty([N, I if back else O], "float32")
        form = QUANT_DTYPES[weight.quant_dtype], int(back), int(exact)
        stored = weight.qweight.data_ptr(), weight.scales.data_ptr(), weight.group
        where = None if experts is None else experts.ctypes.data, starts.ctypes.data, len(starts) - 1
        if call(*form, *stored, x.data_ptr(), *where, I, O, y.data_ptr(), team(threads, N * I * O)):
            raise MemoryError(f"no memory for panels of a matrix of {I} inputs and {O} outputs")
        return y

    return matmul


def splits(library: CDLL, quant_dtype: str, group: int, *, back: bool) -> bool:
    """Whether rows are rounded to whole numbers in products with these weights, on this processor."""
    call = function(library, "packed_rows_splits", [COUNT, COUNT, SIZE], COUNT)
    return bool(call(QUANT_DTYPES[quant_dtype], int(back), group))
