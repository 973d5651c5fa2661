"""Rotary position embedding: over adjacent pairs (2i, 2i + 1) or over the two halves of a head (i, i + d/2), for positions
on one, two or three axes. Axes only change the tables; which columns are a pair only changes the rotation. Positions
themselves are the model's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from erniecore_ops.kernels import replaceable


def rope_tables(position_ids: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of ``position * theta^(-2i/head_dim)``.

    Args:
        position_ids: integers [B, S].
    Returns:
        float32 [B, S, head_dim / 2] each; no gradient.
    Source: Su et al., "RoFormer" (2021).
    """
    return _tables(position_ids.astype("float32").unsqueeze(-1), head_dim, theta)


def rope_tables_3d(position_ids: Tensor, head_dim: int, theta: float, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Tables where each pair turns with the position on one axis, at the frequency that it has on one axis alone: equal
    positions on all axes give the tables of :func:`rope_tables`.

    Args:
        position_ids: integers [B, S, A], for images and videos (time, height, width).
        axes: of each pair 0 .. head_dim/2 - 1 the axis that it follows; see :func:`axes_by_parity` (ERNIE 4.5 VL) and
            :func:`axes_in_sections` (PaddleOCR-VL).
    Returns:
        float32 [B, S, head_dim / 2] each; no gradient.
    Raises:
        ValueError: as many axes as pairs are needed, each of them one of 0 .. A - 1.
    Source: Wang et al., "Qwen2-VL" (2024), on M-RoPE; ERNIE 4.5 technical report (2025).
    """
    num_axes = position_ids.shape[-1]
    if len(axes) != head_dim // 2 or not set(axes) <= set(range(num_axes)):
        raise ValueError(f"{head_dim // 2} pairs need one of axes 0 .. {num_axes - 1} each, found {list(axes)}")
    follows_P = paddle.to_tensor(list(axes), dtype="int64")
    return _tables(paddle.index_select(position_ids, follows_P, axis=-1).astype("float32"), head_dim, theta)


def rope_tables_2d(position_ids: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Tables of a vision tower: the first half of the pairs follows the row, the second the column of a patch, each with
    all frequencies ``theta^(-2j / (head_dim/2))``.

    Args:
        position_ids: integers [B, S, 2]: row and column. head_dim: a multiple of 4.
    Returns:
        float32 [B, S, head_dim / 2] each; no gradient.
    """
    parts = [rope_tables(position_ids[:, :, axis], head_dim // 2, theta) for axis in range(2)]
    cos, sin = (paddle.concat(both, axis=-1) for both in zip(*parts, strict=True))
    return cos, sin


def axes_by_parity(head_dim: int, freq_allocation: int) -> tuple[int, ...]:
    """ERNIE 4.5 VL: height and width (axes 1 and 2) in turns, the last ``freq_allocation`` pairs time (axis 0)."""
    return (*(1 + j % 2 for j in range(head_dim // 2 - freq_allocation)), *(0,) * freq_allocation)


def axes_in_sections(sections: Sequence[int]) -> tuple[int, ...]:
    """PaddleOCR-VL's ``mrope_section``: so many pairs of axis 0, then of axis 1, then of axis 2."""
    return tuple(axis for axis, size in enumerate(sections) for _ in range(size))


def _tables(position: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """``position``: float32 [B, S, 1 or head_dim / 2]."""
    angle = position * rope_frequencies(head_dim, theta)
    return paddle.cos(angle), paddle.sin(angle)


def rope_frequencies(head_dim: int, theta: float) -> Tensor:
    """``theta^(-2i/head_dim)``, float32 [head_dim / 2]: the angle of each pair at position 1."""
    exponent = paddle.arange(0, head_dim, 2, dtype="float32") / head_dim
    return paddle.pow(paddle.full([], theta, "float32"), -exponent)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, *, halves: bool = False) -> Tensor:
    """Rotate every pair of the last axis, in float32 (float64 for float64 input); the result has ``x``'s dtype.

    Args:
        x: [B, S, h, d]. cos, sin: float32 [B, S, d / 2] (B may be 1), of whatever axes.
        halves: pair i is (i, i + d/2), as in GPT-NeoX, instead of (2i, 2i + 1).
    """
    turn = _Rotate.apply if paddle.is_grad_enabled() else _forward
    if x.dtype == paddle.float32:
        turned: Tensor = turn(x, cos, sin, halves)
        return turned
    if x.dtype == paddle.float64:
        turned = turn(x, cos.astype("float64"), sin.astype("float64"), halves)
        return turned
    turned = turn(x.astype("float32"), cos, sin, halves)
    return turned.astype(x.dtype)


def _forward(x: Tensor, cos: Tensor, sin: Tensor, halves: bool) -> Tensor:
    return rotate(x, cos, sin, 1.0, halves)


class _Rotate(PyLayer):  # type: ignore[misc]
    """The gradient is the rotation by the opposite angle."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, halves: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.halves = halves
        return rotate(x.detach(), cos, sin, 1.0, halves)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensor()
        return rotate(dy.detach(), cos, sin, -1.0, ctx.halves), None, None


@replaceable
def rotate(
    x: Tensor, cos: Tensor, sin: Tensor, sign: float = 1.0, halves: bool = False, heads: int | None = None
) -> Tensor:
    """The rotation by ``sign`` times the angle, on tensors without gradient: ``x * C + swap(x) * S`` with tables as wide as x.
    Heads from ``heads`` on stay as they are.

    Pairs are swapped and tables widened by products with constant 0/1 matrices: strided copies and broadcasting
    over an inner axis are an order of magnitude slower on CPU.
    """
    if heads is not None and heads < x.shape[2]:
        return paddle.concat([rotate(x[:, :, :heads], cos, sin, sign, halves), x[:, :, heads:]], axis=2)
    sin = sin if sign > 0 else -sin
    h, d = x.shape[2:]
    swap_dd, widen_eW, widen_signed_eW = _constants(h, d, str(x.dtype), halves)
    out = paddle.matmul(x, swap_dd).multiply_(_widen(sin, widen_signed_eW, x.shape))
    rotated: Tensor = out.add_(_widen(cos, widen_eW, x.shape).multiply_(x))
    return rotated


def _widen(table: Tensor, matrix_eW: Tensor, shape: list[int]) -> Tensor:
    """[B or 1, S, d/2] -> [B, S, h, d]."""
    if table.shape[0] != shape[0]:
        table = table.expand([*shape[:2], table.shape[-1]])
    return paddle.matmul(table, matrix_eW).reshape(shape)


@lru_cache(maxsize=16)
def _constants(h: int, d: int, dtype: str, halves: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Pair swap [d, d]; and the matrices that copy entry i of a table to both columns of pair i of every head, the second
    one with a minus sign at the first column."""
    pair = np.arange(d // 2)
    first, second = (pair, pair + d // 2) if halves else (2 * pair, 2 * pair + 1)
    swap, widen, signed = np.zeros((d, d)), np.zeros((d // 2, h, d)), np.zeros((d // 2, h, d))
    swap[second, first] = swap[first, second] = 1.0
    widen[pair, :, first] = widen[pair, :, second] = 1.0
    signed[pair, :, first], signed[pair, :, second] = -1.0, 1.0
    dtype = dtype.rsplit(".", 1)[-1]
    arrays = (swap, widen.reshape(d // 2, h * d), signed.reshape(d // 2, h * d))
    swap_dd, widen_eW, signed_eW = (paddle.to_tensor(array.astype(dtype)) for array in arrays)
    return swap_dd, widen_eW, signed_eW
