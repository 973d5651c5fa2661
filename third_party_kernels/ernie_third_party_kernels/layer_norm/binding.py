"""Layer norm on Paddle's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, NUMBER, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, pointer, team


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """``layer_norm_forward`` and ``layer_norm_backward`` of ``erniecore_ops``."""
    forward_ = function(library, "layer_norm_forward", [POINTER] * 6 + [SIZE] * 2 + [NUMBER, COUNT])
    backward_ = function(library, "layer_norm_backward", [POINTER] * 9 + [SIZE] * 2 + [COUNT])
    num_parts = function(library, "layer_norm_parts", [SIZE], SIZE)

    def forward(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
        H = x.shape[-1]
        T = x.size // H
        y, mean, inverse = paddle.empty_like(x), paddle.empty([T], "float32"), paddle.empty([T], "float32")
        parts = (tensor.data_ptr() for tensor in (x, weight, bias, y, mean, inverse))
        forward_(*parts, T, H, epsilon, team(threads, T * H))
        return y, mean, inverse

    def backward(
        x: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor, dy: Tensor, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        H = x.shape[-1]
        T = x.size // H
        dx = paddle.empty_like(x) if wanted[0] else None
        dw, db = (paddle.empty_like(weight) if wanted[1] else None for _ in range(2))
        room = paddle.empty([num_parts(T), 2 * H], "float32") if wanted[1] else None
        parts = (pointer(tensor) for tensor in (x, weight, mean, inverse, dy, dx, dw, db, room))
        backward_(*parts, T, H, team(threads, T * H))
        return dx, dw, db

    def can_forward(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> bool:
        return plain(x, weight, bias) and weight.shape == bias.shape == x.shape[-1:]

    def can_backward(
        x: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor, dy: Tensor, wanted: tuple[bool, bool]
    ) -> bool:
        H = x.shape[-1]
        fits = weight.shape == x.shape[-1:] and dy.shape == x.shape and mean.size * H == inverse.size * H == x.size
        return fits and plain(x, weight, mean, inverse, dy)

    return {
        "layer_norm_forward": Kernel(forward, can_forward),
        "layer_norm_backward": Kernel(backward, can_backward),
    }
