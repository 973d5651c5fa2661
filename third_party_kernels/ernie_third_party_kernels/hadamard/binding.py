"""The Walsh-Hadamard transform on Paddle's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, team


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """Kernels that replace ``hadamard`` of ``erniecore_ops``."""
    run_ = function(library, "hadamard", [POINTER, POINTER, SIZE, SIZE, COUNT])

    def hadamard(x: Tensor, block: int) -> Tensor:
        y = paddle.empty_like(x)
        run_(x.data_ptr(), y.data_ptr(), x.size // block, block, team(threads, x.size))
        return y

    def supports(x: Tensor, block: int) -> bool:
        fits = block > 1 and not block & (block - 1) and x.ndim > 0 and x.size > 0 and x.shape[-1] % block == 0
        return fits and plain(x)

    return {"hadamard": Kernel(hadamard, supports)}
