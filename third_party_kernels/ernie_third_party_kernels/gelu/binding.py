"""GELU and its approximations on Paddle's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, team

VARIANTS = {"erf": 0, "tanh": 1, "quick": 2}


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """``gelu_forward`` and ``gelu_backward`` of ``erniecore_ops``."""
    forward_ = function(library, "gelu_forward", [POINTER] * 2 + [SIZE, COUNT, COUNT])
    backward_ = function(library, "gelu_backward", [POINTER] * 3 + [SIZE, COUNT, COUNT])

    def forward(x: Tensor, variant: str) -> Tensor:
        y = paddle.empty_like(x)
        forward_(x.data_ptr(), y.data_ptr(), x.size, VARIANTS[variant], team(threads, x.size))
        return y

    def backward(x: Tensor, dy: Tensor, variant: str) -> Tensor:
        dx = paddle.empty_like(x)
        backward_(x.data_ptr(), dy.data_ptr(), dx.data_ptr(), x.size, VARIANTS[variant], team(threads, x.size))
        return dx

    def can_forward(x: Tensor, variant: str) -> bool:
        return variant in VARIANTS and plain(x)

    def can_backward(x: Tensor, dy: Tensor, variant: str) -> bool:
        return variant in VARIANTS and x.shape == dy.shape and plain(x, dy)

    return {"gelu_forward": Kernel(forward, can_forward), "gelu_backward": Kernel(backward, can_backward)}
