"""A bias on the rows of Paddle's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, team


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """``add_bias_`` and ``sum_rows`` of ``erniecore_ops``."""
    add_ = function(library, "add_bias", [POINTER] * 2 + [SIZE] * 2 + [COUNT])
    sum_ = function(library, "sum_rows", [POINTER] * 3 + [SIZE] * 2 + [COUNT])
    num_parts = function(library, "sum_rows_parts", [SIZE], SIZE)

    def add_bias_(y: Tensor, bias: Tensor) -> Tensor:
        H = bias.shape[0]
        add_(y.data_ptr(), bias.data_ptr(), y.size // H, H, team(threads, y.size))
        return y

    def sum_rows(dy: Tensor) -> Tensor:
        T, H = dy.shape
        sums, room = paddle.empty([H], "float32"), paddle.empty([num_parts(T), H], "float32")
        sum_(dy.data_ptr(), sums.data_ptr(), room.data_ptr(), T, H, team(threads, dy.size))
        return sums

    def can_add(y: Tensor, bias: Tensor) -> bool:
        return bias.ndim == 1 and y.shape[-1:] == bias.shape and plain(y, bias)

    def can_sum(dy: Tensor) -> bool:
        return dy.ndim == 2 and plain(dy)

    return {"add_bias_": Kernel(add_bias_, can_add), "sum_rows": Kernel(sum_rows, can_sum)}
