"""The highest scores of each row on Paddle's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, team

#: as many as the kernel keeps
MOST = 64


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """Kernels that replace ``top_experts`` of ``erniecore_ops``."""
    run_ = function(library, "top_experts", [POINTER, POINTER] + [SIZE] * 3 + [COUNT])

    def top_experts(scores: Tensor, k: int) -> Tensor:
        T, E = scores.shape
        chosen = paddle.empty([T, k], "int64")
        run_(scores.data_ptr(), chosen.data_ptr(), T, E, k, team(threads, T * E))
        return chosen

    def supports(scores: Tensor, k: int) -> bool:
        return scores.ndim == 2 and 0 < k <= min(MOST, scores.shape[1]) and plain(scores)

    return {"top_experts": Kernel(top_experts, supports)}
