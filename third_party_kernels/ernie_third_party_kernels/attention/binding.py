"""Blockwise attention and its gradients on Paddle's tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, NUMBER, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, pointer, team

#: Tasks of a backward pass: where there are fewer sequences and key heads, sums over queries are made in parts.
TASKS, ROWS = 8, 64


def kernels(library: ctypes.CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """``attention_forward`` and ``attention_backward`` of ``erniecore_ops``."""
    forward_ = function(library, "attention_forward", [POINTER] * 9 + [NUMBER, COUNT], COUNT)
    backward_ = function(library, "attention_backward", [POINTER] * 13 + [NUMBER, SIZE, COUNT], COUNT)
    return {
        "attention_forward": Kernel(_forward(forward_, threads), _can_forward),
        "attention_backward": Kernel(_backward(backward_, threads), _can_backward),
    }


def _forward(function: Callable[..., int], threads: Threads) -> Callable[..., tuple[Tensor, Tensor]]:
    def forward(
        q: Tensor, k: Tensor, v: Tensor, ends: Tensor | None, mask: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        B, S, hq, _ = q.shape
        out, stats, keep = paddle.empty(q.shape, q.dtype), paddle.empty([B, hq, S], q.dtype), _kept(mask)
        parts = (pointer(x) for x in (q, k, v, ends, keep, out, stats))
        if function(*parts, _sizes(q, k), _steps(q, k, v), scale, team(threads, q.size * k.shape[1])):
            raise MemoryError(f"no memory for attention over {k.shape[1]} keys")
        return out, stats

    return forward


def _backward(function: Callable[..., int], threads: Threads) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def backward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        stats: Tensor | None,
        dy: Tensor,
        ends: Tensor | None,
        mask: Tensor | None,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        (B, S, hq, _), hk, keep = q.shape, k.shape[2], _kept(mask)
        dq, dk, dv = (paddle.empty(x.shape, x.dtype) for x in (q, k, v))
        parts = (pointer(x) for x in (q, k, v, out, dy, stats, ends, keep, dq, dk, dv))
        sums = max(1, min(-(-TASKS // (B * hk)), -(-S // ROWS) * (hq // hk)))
        count = team(threads, q.size * k.shape[1])
        if function(*parts, _sizes(q, k), _steps(q, k, v, out, dy), scale, sums, count):
            raise MemoryError(f"no memory for the gradients of attention over {k.shape[1]} keys")
        return dq, dk, dv

    return backward


def _can_forward(q: Tensor, k: Tensor, v: Tensor, ends: Tensor | None, mask: Tensor | None, scale: float) -> bool:
    (B, S, hq, d), (_, K, hk, _) = q.shape, k.shape
    fits = q.size > 0 and K > 0 and k.shape == v.shape == [B, K, hk, d] and hq % hk == 0
    fits = fits and (
        ends is None or (ends.dtype == paddle.int32 and ends.size == B * K == B * S and ends.is_contiguous())
    )
    return fits and (mask is None or mask.shape == [B, K]) and _dense_rows(q, k, v)


def _can_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    stats: Tensor | None,
    dy: Tensor,
    ends: Tensor | None,
    mask: Tensor | None,
    scale: float,
) -> bool:
    fits = stats is not None and out.shape == dy.shape == q.shape and _dense_rows(out, dy)
    return fits and _can_forward(q, k, v, ends, mask, scale)


def _dense_rows(*tensors: Tensor) -> bool:
    """float32, the elements of a head side by side."""
    return all(x.dtype == paddle.float32 and x.strides[3] == 1 for x in tensors)


def _kept(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else (mask != 0).contiguous()


def _sizes(q: Tensor, k: Tensor) -> Any:
    (B, S, hq, d), (K, hk) = q.shape, k.shape[1:3]
    return (ctypes.c_int64 * 6)(B, S, K, hq, hk, d)


def _steps(*tensors: Tensor) -> Any:
    steps = [step for x in tensors for step in x.strides[:3]]
    return (ctypes.c_int64 * len(steps))(*steps)
