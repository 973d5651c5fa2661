"""The gradient of stacked experts' matrices on Paddle's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import CDLL
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, cover, parts_of, plain, team

#: Elements of a matrix. Larger ones are left to matmuls that copy operands into an order of their own.
SMALL = 1 << 18


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """The kernel of ``grouped_weight_gradient``, which sums outer products over the rows of each expert."""
    outer_ = function(library, "grouped_outer", [POINTER] * 4 + [SIZE] * 3 + [POINTER, COUNT], COUNT)

    def weight_gradient(x: Tensor, dy: Tensor, parts: Sequence[Any], num_experts: int) -> Tensor:
        (N, I), O = x.shape, dy.shape[1]  # noqa: E741
        experts, starts = parts_of(parts)
        some = len(experts) < num_experts or bool((starts[1:] == starts[:-1]).any())
        dw = (paddle.zeros if some else paddle.empty)([num_experts, I, O], "float32")
        where = experts.ctypes.data, starts.ctypes.data, len(experts)
        if outer_(x.data_ptr(), dy.data_ptr(), *where, I, O, dw.data_ptr(), team(threads, N * I * O)):
            raise MemoryError(f"no memory for the gradient of a matrix of {I} by {O} elements")
        return dw

    return {"grouped_weight_gradient": Kernel(weight_gradient, _can_weight_gradient)}


def _can_weight_gradient(x: Tensor, dy: Tensor, parts: Sequence[Any], num_experts: int) -> bool:
    if x.ndim != 2 or dy.ndim != 2 or not x.shape[0] or x.shape[0] != dy.shape[0]:
        return False
    few, many = sorted((x.shape[1], dy.shape[1]))
    once = len({part.expert for part in parts}) == len(parts)
    fits = few > 0 and many % 16 == 0 and few * many <= SMALL
    return once and fits and plain(x, dy) and cover(parts, x.shape[0], num_experts)
