"""Blockwise attention and its gradients on Paddle's tensors: of sequences, and of frames of patches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, NUMBER, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, pointer, team

#: Tasks of a backward pass: where there are fewer sequences and key heads, sums over queries are made side by side.
TASKS, ROWS = 8, 64
#: Queries, keys and numbers of a head from which on matrix tiles are worth their panels.
FEWEST = 32


def kernels(library: ctypes.CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """``attention_forward``, ``attention_backward`` and both of patches of ``erniecore_ops``."""
    forward_ = function(library, "attention_forward", [POINTER] * 9 + [NUMBER, COUNT, COUNT], COUNT)
    backward_ = function(library, "attention_backward", [POINTER] * 13 + [NUMBER, SIZE, COUNT, COUNT], COUNT)
    frames, sizes = [POINTER] * 2 + [SIZE], [SIZE] * 3 + [NUMBER]
    patches_ = function(library, "patch_attention_forward", [*frames, *[POINTER] * 2, *sizes, COUNT, COUNT], COUNT)
    back = [*frames, *[POINTER] * 4, *sizes, SIZE, COUNT, COUNT]
    patches_back_ = function(library, "patch_attention_backward", back, COUNT)
    tiles = bool(function(library, "has_parts_matmul", [], COUNT)())
    return {
        "attention_forward": Kernel(_forward(forward_, threads, tiles), _can_forward),
        "attention_backward": Kernel(_backward(backward_, threads, tiles), _can_backward),
        "patch_attention_forward": Kernel(_patches(patches_, threads, tiles), _can_patches),
        "patch_attention_backward": Kernel(_patches_back(patches_back_, threads, tiles), _can_patches_back),
    }


def _tile_parts(parts: int, tiles: bool, *sizes: int) -> int:
    """bfloat16 numbers of each number in products, 0 for float32. ``tiles``: whether the processor has any."""
    return parts if tiles and parts in (1, 2) and min(sizes) >= FEWEST else 0


def _forward(function: Callable[..., int], threads: Threads, tiles: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    def forward(
        q: Tensor, k: Tensor, v: Tensor, ends: Tensor | None, mask: Tensor | None, scale: float, parts: int = 3
    ) -> tuple[Tensor, Tensor]:
        (B, S, hq, d), K = q.shape, k.shape[1]
        out, stats, keep = paddle.empty(q.shape, q.dtype), paddle.empty([B, hq, S], q.dtype), _kept(mask)
        given = (pointer(x) for x in (q, k, v, ends, keep, out, stats))
        parts = _tile_parts(parts, tiles, S, K, d)
        if function(*given, _sizes(q, k), _steps(q, k, v), scale, parts, team(threads, q.size * K)):
            raise MemoryError(f"no memory for attention over {K} keys")
        return out, stats

    return forward


def _backward(
    function: Callable[..., int], threads: Threads, tiles: bool
) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
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
        parts: int = 3,
    ) -> tuple[Tensor, Tensor, Tensor]:
        (B, S, hq, d), (K, hk), keep = q.shape, k.shape[1:3], _kept(mask)
        dq, dk, dv = (paddle.empty(x.shape, x.dtype) for x in (q, k, v))
        given = (pointer(x) for x in (q, k, v, out, dy, stats, ends, keep, dq, dk, dv))
        sums = _num_sums(B * hk, -(-S // ROWS) * (hq // hk))
        how = _tile_parts(parts, tiles, S, K, d), team(threads, q.size * K)
        if function(*given, _sizes(q, k), _steps(q, k, v, out, dy), scale, sums, *how):
            raise MemoryError(f"no memory for the gradients of attention over {K} keys")
        return dq, dk, dv

    return backward


def _patches(
    function: Callable[..., int], threads: Threads, tiles: bool
) -> Callable[..., tuple[Tensor, tuple[Tensor, ...]]]:
    def forward(qkv: Tensor, lengths: Sequence[int], scale: float, parts: int = 3) -> tuple[Tensor, tuple[Tensor, ...]]:
        N, _, h, d = qkv.shape
        out, stats = paddle.empty([N, h, d], qkv.dtype), paddle.empty([h, N], qkv.dtype)
        given = qkv.data_ptr(), _array(lengths), len(lengths), out.data_ptr(), stats.data_ptr()
        how = _tile_parts(parts, tiles, N, d), team(threads, out.size * max(lengths))
        if function(*given, N, h, d, scale, *how):
            raise MemoryError(f"no memory for attention of {N} patches")
        return out, (stats,)

    return forward


def _patches_back(function: Callable[..., int], threads: Threads, tiles: bool) -> Callable[..., Tensor]:
    def backward(
        qkv: Tensor,
        out: Tensor,
        stats: tuple[Tensor, ...],
        dy: Tensor,
        lengths: Sequence[int],
        scale: float,
        parts: int = 3,
    ) -> Tensor:
        N, _, h, d = qkv.shape
        found = paddle.empty(qkv.shape, qkv.dtype)
        given = out.data_ptr(), dy.data_ptr(), stats[0].data_ptr(), found.data_ptr()
        how = _num_sums(h, -(-N // ROWS)), _tile_parts(parts, tiles, N, d), team(threads, out.size * max(lengths))
        if function(qkv.data_ptr(), _array(lengths), len(lengths), *given, N, h, d, scale, *how):
            raise MemoryError(f"no memory for the gradients of attention of {N} patches")
        return found

    return backward


def _can_patches(qkv: Tensor, lengths: Sequence[int], scale: float, parts: int = 3) -> bool:
    fits = qkv.ndim == 4 and qkv.shape[1] == 3 and qkv.size > 0 and min(lengths, default=0) > 0
    return fits and sum(lengths) == qkv.shape[0] and plain(qkv)


def _can_patches_back(
    qkv: Tensor,
    out: Tensor,
    stats: tuple[Tensor, ...],
    dy: Tensor,
    lengths: Sequence[int],
    scale: float,
    parts: int = 3,
) -> bool:
    if not _can_patches(qkv, lengths, scale) or [x.shape for x in stats] != [[qkv.shape[2], qkv.shape[0]]]:
        return False
    return out.shape == dy.shape == [qkv.shape[0], *qkv.shape[2:]] and plain(out, dy, *stats)


def _can_forward(
    q: Tensor, k: Tensor, v: Tensor, ends: Tensor | None, mask: Tensor | None, scale: float, parts: int = 3
) -> bool:
    (B, _, hq, d), (_, K, hk, _) = q.shape, k.shape
    fits = q.size > 0 and K > 0 and k.shape == v.shape == [B, K, hk, d] and hq % hk == 0
    fits = fits and (ends is None or (ends.dtype == paddle.int32 and ends.size == B * K and ends.is_contiguous()))
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
    parts: int = 3,
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


def _num_sums(heads: int, blocks: int) -> int:
    """Sums over queries that are made side by side for each key head, of so many blocks of queries."""
    return max(1, min(-(-TASKS // heads), blocks))


def _array(lengths: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(lengths))(*lengths)


def _steps(*tensors: Tensor) -> Any:
    steps = [step for x in tensors for step in x.strides[:3]]
    return (ctypes.c_int64 * len(steps))(*steps)
