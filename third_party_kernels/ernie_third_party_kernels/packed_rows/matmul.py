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

#: ``matmul(x, weight, experts, starts, back=, fine=)``: experts and starts as in ``packed_weights``; ``fine`` keeps of the rows
#: what float32 holds
Matmul = Callable[..., Tensor]


def matmul_of(library: CDLL, threads: Threads, tiles: bool = True) -> Matmul:
    """The function, bound to the kernels of ``library``; ``tiles``: with those of the processor, where it has them."""
    arguments = [COUNT] * 4 + [POINTER, POINTER, SIZE] + [POINTER] * 3 + [SIZE] * 3 + [POINTER, COUNT]
    call = function(library, "packed_rows", arguments, COUNT)

    def matmul(x: Tensor, weight: Any, experts: Any, starts: Any, *, back: bool = False, fine: bool = False) -> Tensor:
        N, I, O = x.shape[0], weight.inputs, weight.outputs  # noqa: E741
        y = paddle.empty([N, I if back else O], "float32")
        form = QUANT_DTYPES[weight.quant_dtype], int(back), int(fine), int(tiles)
        stored = weight.qweight.data_ptr(), weight.scales.data_ptr(), weight.group
        where = None if experts is None else experts.ctypes.data, starts.ctypes.data, len(starts) - 1
        if call(*form, *stored, x.data_ptr(), *where, I, O, y.data_ptr(), team(threads, N * I * O)):
            raise MemoryError(f"no memory for panels of a matrix of {I} inputs and {O} outputs")
        return y

    return matmul


def splits(library: CDLL, quant_dtype: str, group: int, *, back: bool, fine: bool = False) -> bool:
    """Whether rows are split into whole numbers in products with these weights, on this processor."""
    call = function(library, "packed_rows_splits", [COUNT, COUNT, SIZE, COUNT], COUNT)
    return bool(call(QUANT_DTYPES[quant_dtype], int(back), group, int(fine)))


def has_tiles(library: CDLL) -> bool:
    """Whether they are multiplied with the matrix tiles of this processor."""
    return bool(function(library, "packed_rows_tiles", [], COUNT)())
