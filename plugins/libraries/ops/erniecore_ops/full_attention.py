"""Attention of every query to every key."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from erniecore_ops._frozen import frozen
from erniecore_ops.attention import attention_backward, attention_forward
from erniecore_ops.matmul import num_parts


def full_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """``softmax(q k^T scale) v``: every query attends to every key. The memory grows with S, as that of :func:`attention`.

    Args:
        q, k, v: [B, S, h, d]. scale: 1 / sqrt(d) by default.
    Returns:
        [B, S, h, d] in ``v``'s dtype; float32 inside, as :func:`attention` (float64 for float64 input).
    """
    dtype, scale = (
        "float64" if q.dtype == paddle.float64 else "float32",
        float(q.shape[-1] ** -0.5) if scale is None else scale,
    )
    # views would lose their strides when they are kept for recomputation
    q32, k32, v32 = (x.astype(dtype).contiguous() for x in (q, k, v))
    if paddle.is_grad_enabled():
        return _FullAttention.apply(q32, k32, v32, scale).astype(v.dtype)
    return attend_all(q32, k32, v32, scale, num_parts())[0].astype(v.dtype)


class _FullAttention(PyLayer):  # type: ignore[misc]
    """Keeps its inputs, its result, and what the implementation wants for the way back."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        out, stats = attend_all(q.detach(), k.detach(), v.detach(), scale, num_parts())
        ctx.save_for_backward(q, k, v, out, *(() if stats is None else (stats,)))
        ctx.scale, ctx.frozen = scale, frozen(q, k, v)
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, *stats = (x.detach() for x in ctx.saved_tensor())
        given = q, k, v, out, stats[0] if stats else None, dy.detach(), ctx.scale
        found = attend_all_backward(*given, num_parts())
        return tuple(None if is_frozen else dx for is_frozen, dx in zip(ctx.frozen, found, strict=True))


def attend_all(q: Tensor, k: Tensor, v: Tensor, scale: float, parts: int) -> tuple[Tensor, Tensor | None]:
    """As ``attention_forward``, where every query attends to every key."""
    return attention_forward(q, _behind(k), _behind(v), None, _unmasked(k), scale, parts)


def attend_all_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, stats: Tensor | None, dy: Tensor, scale: float, parts: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) from the two results of :func:`attend_all`."""
    dq, dk, dv = attention_backward(q, _behind(k), _behind(v), out, stats, dy, None, _unmasked(k), scale, parts)
    return dq, dk[:, : k.shape[1]].contiguous(), dv[:, : v.shape[1]].contiguous()


def _behind(x: Tensor) -> Tensor:
    """As many masked keys behind the others: then the last of these is before the diagonal of the first query."""
    return paddle.concat([x, paddle.zeros_like(x)], axis=1)


def _unmasked(k: Tensor) -> Tensor:
    """The mask of keys that :func:`_behind` made, [B, 2 S]. What is masked for all queries costs no products."""
    ones = paddle.ones(k.shape[:2], "int32")
    return paddle.concat([ones, paddle.zeros_like(ones)], axis=1)
