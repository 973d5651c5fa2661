"""Attention of a vision tower: patches of images, frame after frame, each of which sees all patches of its own frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import Tensor
from paddle.autograd import PyLayer

from erniecore_ops.full_attention import attend_all, attend_all_backward
from erniecore_ops.kernels import replaceable
from erniecore_ops.matmul import EXACT, num_parts
from erniecore_ops.rope import apply_rope, rotate


def patch_attention(qkv: Tensor, cos: Tensor, sin: Tensor, lengths: Sequence[int], head_dim: int) -> Tensor:
    """Rotate queries and keys (pair i is (i, i + d/2)), then ``softmax(q k^T / sqrt(d)) v`` within each frame.

    In float32 and float64 what is kept is the rotated input, the result, and what the implementation wants for the way back:
    the memory grows with N. Other dtypes are Paddle's.

    Args:
        qkv: [N, 3 h d] as one projection makes them: all queries of a patch, then its keys, then its values.
        cos, sin: float32 [1, N, d / 2]; see :func:`rope_tables_2d`.
        lengths: patches of each frame, in order; they add up to N. head_dim: d.
    Returns:
        [N, h d] in ``qkv``'s dtype.
    Raises:
        ValueError: lengths that do not add up to N.
    """
    N = qkv.shape[0]
    if sum(lengths) != N:
        raise ValueError(f"frames of {sum(lengths)} patches together, but {N} patches")
    qkv_N3hd = qkv.reshape([N, 3, -1, head_dim])
    if qkv.dtype not in (paddle.float32, paddle.float64):
        return _by_paddle(qkv_N3hd, cos, sin, lengths).reshape([N, -1])
    tables = (cos.astype(qkv.dtype), sin.astype(qkv.dtype))
    run = _PatchAttention.apply if paddle.is_grad_enabled() and not qkv.stop_gradient else _forward
    found: Tensor = run(qkv_N3hd, *tables, tuple(lengths))
    return found.reshape([N, -1])


def _forward(qkv: Tensor, cos: Tensor, sin: Tensor, lengths: tuple[int, ...]) -> Tensor:
    return patch_attention_forward(_turned(qkv, cos, sin, 1.0), lengths, _scale(qkv), num_parts())[0]


class _PatchAttention(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, lengths: tuple[int, ...]) -> Tensor:
        turned = _turned(qkv.detach(), cos, sin, 1.0)
        out, stats = patch_attention_forward(turned, lengths, _scale(qkv), num_parts())
        ctx.save_for_backward(turned, out, cos, sin, *stats)
        ctx.lengths = lengths
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        turned, out, cos, sin, *stats = (x.detach() for x in ctx.saved_tensor())
        given = turned, out, tuple(stats), dy.detach(), ctx.lengths, _scale(turned)
        d_turned = patch_attention_backward(*given, num_parts())
        return _turned(d_turned, cos, sin, -1.0), None, None


def _turned(qkv_N3hd: Tensor, cos: Tensor, sin: Tensor, sign: float) -> Tensor:
    """Queries and keys rotated, values as they are."""
    N, _, h, d = qkv_N3hd.shape
    heads = qkv_N3hd.reshape([1, N, 3 * h, d])
    return rotate(heads, cos, sin, sign, True, 2 * h).reshape([N, 3, h, d])


def _scale(qkv_N3hd: Tensor) -> float:
    return float(qkv_N3hd.shape[-1] ** -0.5)


@replaceable
def patch_attention_forward(
    qkv: Tensor, lengths: Sequence[int], scale: float, parts: int = EXACT
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """(result [N, h, d], what :func:`patch_attention_backward` of the same implementation wants to know) of qkv [N, 3, h, d],
    queries and keys rotated, on tensors without gradient. Frames of one length that follow each other go together.

    Args:
        lengths: patches of each frame. parts: as of ``attention_forward``.
    """
    outs, stats = [], []
    for q, k, v in _runs(qkv, lengths):
        out, kept = attend_all(q, k, v, scale, parts)
        outs.append(out.reshape([-1, *out.shape[2:]]))
        stats += [] if kept is None else [kept]
    return paddle.concat(outs), tuple(stats)


@replaceable
def patch_attention_backward(
    qkv: Tensor,
    out: Tensor,
    stats: tuple[Tensor, ...],
    dy: Tensor,
    lengths: Sequence[int],
    scale: float,
    parts: int = EXACT,
) -> Tensor:
    """The gradient of qkv, [N, 3, h, d]."""
    found, start = [], 0
    for number, (q, k, v) in enumerate(_runs(qkv, lengths)):
        rows = slice(start, start + q.shape[0] * q.shape[1])
        mine, given = (x[rows].reshape(q.shape).contiguous() for x in (out, dy))
        slopes = attend_all_backward(q, k, v, mine, stats[number] if stats else None, given, scale, parts)
        found.append(paddle.stack([slope.reshape([-1, *slope.shape[2:]]) for slope in slopes], axis=1))
        start = rows.stop
    return paddle.concat(found)


def _runs(qkv: Tensor, lengths: Sequence[int]) -> Iterator[tuple[Tensor, ...]]:
    """Queries, keys and values [frames, n, h, d] of each run of frames of n patches."""
    start = 0
    for length, frames in groupby(lengths):
        count = len(list(frames))
        part = qkv[start : start + count * length].reshape([count, length, *qkv.shape[1:]])
        yield tuple(x.contiguous() for x in part.unbind(axis=2))
        start += count * length


def _by_paddle(qkv_N3hd: Tensor, cos: Tensor, sin: Tensor, lengths: Sequence[int]) -> Tensor:
    """In halves, for which Paddle has kernels; in float32 its own keep every probability."""
    q, k, v = qkv_N3hd.unsqueeze(0).unbind(axis=2)
    q, k = (apply_rope(x, cos, sin, halves=True) for x in (q, k))
    runs = [(length, len(list(frames))) for length, frames in groupby(lengths)]
    sizes = [length * count for length, count in runs]
    found = []
    # split at once: the gradient of a slice is a tensor of all patches, for each image
    for (length, count), *parts in zip(runs, *(paddle.split(x, sizes, axis=1) for x in (q, k, v)), strict=True):
        shaped = (x.reshape([count, length, *x.shape[2:]]) for x in parts)
        y = F.scaled_dot_product_attention(*shaped, is_causal=False)
        found.append(y.reshape([count * length, *y.shape[2:]]))
    return paddle.concat(found)
