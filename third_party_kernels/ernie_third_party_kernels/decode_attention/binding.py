"""Attention of one new position per sequence on Paddle's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, NUMBER, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, pointer, team


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """Kernels that replace ``decode_attention`` of ``erniecore_ops``."""
    attend_ = function(library, "decode_attention", [POINTER] * 5 + [SIZE] * 8 + [NUMBER, COUNT], COUNT)

    def decode_attention(q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None, scale: float) -> Tensor:
        B, _, hq, d = q.shape
        K, hk = k.shape[1:3]
        out = paddle.empty_like(q)
        keep = None if attention_mask is None else (attention_mask != 0).contiguous()
        parts = q.data_ptr(), k.data_ptr(), v.data_ptr(), pointer(keep), out.data_ptr()
        batch_step, key_step, head_step, _ = k.strides
        count = team(threads, B * K * hq * d)
        if attend_(*parts, B, K, hq, hk, d, batch_step, key_step, head_step, scale, count):
            raise MemoryError(f"no memory for {B} x {hq} x {K} scores")
        return out

    def supports(q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None, scale: float) -> bool:
        (B, S, hq, d), (_, K, hk, _), strides = q.shape, k.shape, k.strides
        fits = S == 1 and K > 0 and k.shape == v.shape == [B, K, hk, d] and hq % hk == 0
        fits = fits and (attention_mask is None or attention_mask.shape == [B, K])
        return fits and plain(q) and k.dtype == v.dtype == paddle.float32 and strides == v.strides and strides[3] == 1

    return {"decode_attention": Kernel(decode_attention, supports)}
