"""The gradient of a row lookup on Paddle's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, team


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """Kernels that replace ``embedding_backward`` of ``erniecore_ops``."""
    run_ = function(library, "embedding_backward", [POINTER] * 3 + [SIZE] * 3 + [COUNT], COUNT)

    def embedding_backward(ids: Tensor, dy: Tensor, rows: int) -> Tensor:
        H = dy.shape[-1]
        dw = paddle.empty([rows, H], "float32")
        if run_(ids.data_ptr(), dy.data_ptr(), dw.data_ptr(), ids.size, rows, H, team(threads, dw.size)):
            raise ValueError(f"ids must be in 0 .. {rows - 1}, found {int(ids.min())} .. {int(ids.max())}")
        return dw

    def supports(ids: Tensor, dy: Tensor, rows: int) -> bool:
        listed = ids.dtype == paddle.int64 and ids.is_contiguous() and ids.size > 0
        return listed and dy.shape[:-1] == ids.shape and plain(dy)

    return {"embedding_backward": Kernel(embedding_backward, supports)}
