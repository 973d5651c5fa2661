"""RMS norm on Paddle's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, NUMBER, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, pointer, team


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """``rms_norm_forward`` and ``rms_norm_backward`` of ``erniecore_ops``."""
    forward_ = function(library, "rms_norm_forward", [POINTER] * 4 + [SIZE] * 2 + [NUMBER, COUNT])
    backward_ = function(library, "rms_norm_backward", [POINTER] * 7 + [SIZE] * 2 + [COUNT])
    num_parts = function(library, "rms_norm_parts", [SIZE], SIZE)

    def forward(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        H = x.shape[-1]
        T = x.size // H
        y, inverse = paddle.empty_like(x), paddle.empty([T], "float32")
        parts = x.data_ptr(), weight.data_ptr(), y.data_ptr(), inverse.data_ptr()
        forward_(*parts, T, H, epsilon, team(threads, T * H))
        return y, inverse

    def backward(
        x: Tensor, weight: Tensor, inverse: Tensor, dy: Tensor, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        H = x.shape[-1]
        T = x.size // H
        dx, dw = (paddle.empty_like(like) if want else None for want, like in zip(wanted, (x, weight), strict=True))
        room = paddle.empty([num_parts(T), H], "float32") if wanted[1] else None
        parts = x.data_ptr(), weight.data_ptr(), inverse.data_ptr(), dy.data_ptr(), pointer(dx), pointer(dw)
        backward_(*parts, pointer(room), T, H, team(threads, T * H))
        return dx, dw

    def can_forward(x: Tensor, weight: Tensor, epsilon: float) -> bool:
        return plain(x, weight) and weight.shape == x.shape[-1:]

    def can_backward(x: Tensor, weight: Tensor, inverse: Tensor, dy: Tensor, wanted: tuple[bool, bool]) -> bool:
        fits = weight.shape == x.shape[-1:] and dy.shape == x.shape and inverse.size * x.shape[-1] == x.size
        return fits and plain(x, weight, inverse, dy)

    return {
        "rms_norm_forward": Kernel(forward, can_forward),
        "rms_norm_backward": Kernel(backward, can_backward),
    }
