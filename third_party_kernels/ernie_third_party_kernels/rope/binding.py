"""Rotation of pairs on Paddle's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, NUMBER, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, team


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """Kernels that replace ``rotate`` of ``erniecore_ops``."""
    rotate_ = function(library, "rotate", [POINTER] * 4 + [SIZE] * 6 + [NUMBER, COUNT, COUNT])

    def rotate(
        x: Tensor, cos: Tensor, sin: Tensor, sign: float = 1.0, halves: bool = False, heads: int | None = None
    ) -> Tensor:
        B, S, h, d = x.shape
        y = paddle.empty_like(x)
        step = 0 if cos.shape[0] == 1 else S * (d // 2)
        parts = x.data_ptr(), cos.data_ptr(), sin.data_ptr(), y.data_ptr()
        rotate_(*parts, B, S, h, h if heads is None else heads, d, step, sign, int(halves), team(threads, x.size))
        return y

    def supports(
        x: Tensor, cos: Tensor, sin: Tensor, sign: float = 1.0, halves: bool = False, heads: int | None = None
    ) -> bool:
        B, S, h, d = x.shape
        fits = d % 2 == 0 and (heads is None or 0 <= heads <= h)
        fits = fits and cos.shape == sin.shape and cos.shape in ([B, S, d // 2], [1, S, d // 2])
        return fits and plain(x, cos, sin)

    return {"rotate": Kernel(rotate, supports)}
