"""The gated activation of the feed-forward layers."""

from __future__ import annotations

from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import Tensor
from paddle.autograd import PyLayer

from erniecore_ops._frozen import frozen
from erniecore_ops.kernels import replaceable
from erniecore_ops.parallel import parallel_map, row_ranges


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up``, elementwise; both of one shape [..., I].

    Source: Shazeer, "GLU Variants Improve Transformer" (2020).
    """
    y: Tensor = _SwiGLU.apply(gate, up) if paddle.is_grad_enabled() else swiglu_forward(gate, up)
    return y


class _SwiGLU(PyLayer):  # type: ignore[misc]
    """Keeps its inputs only; the sigmoid is computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.frozen = frozen(gate, up)
        return swiglu_forward(gate.detach(), up.detach())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gate, up = ctx.saved_tensor()
        d_gate, d_up = swiglu_backward(gate.detach(), up.detach(), dy.detach())
        return None if ctx.frozen[0] else d_gate, None if ctx.frozen[1] else d_up


@replaceable
def swiglu_forward(gate: Tensor, up: Tensor, factor: Tensor | None = None) -> Tensor:
    """The activation on tensors without gradient, in pieces that stay in cache; ``factor`` [T, 1] multiplies rows."""
    shape, gate, up = gate.shape, _rows(gate), _rows(up)
    y, ones_1I = paddle.empty(gate.shape, gate.dtype), paddle.ones([1, gate.shape[1]], gate.dtype)

    def piece(rows: tuple[int, int]) -> None:
        start, stop = rows
        gate_part = gate[start:stop]
        gated = F.sigmoid(gate_part).multiply_(up[start:stop])
        if factor is not None:
            gated = gated.multiply_(paddle.matmul(factor[start:stop], ones_1I))
        paddle.multiply(gate_part, gated, out=y[start:stop])

    parallel_map(piece, row_ranges(*gate.shape), gate)
    return y.reshape(shape)


@replaceable
def swiglu_backward(gate: Tensor, up: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """(d gate, d up): with s = sigmoid(gate), d up = dy gate s and d gate = dy up s (1 + gate (1 - s))."""
    shape, gate, up, dy = gate.shape, _rows(gate), _rows(up), _rows(dy)
    d_gate, d_up = paddle.empty(gate.shape, gate.dtype), paddle.empty(gate.shape, gate.dtype)

    def piece(rows: tuple[int, int]) -> None:
        start, stop = rows
        gate_part, dy_part = gate[start:stop], dy[start:stop]
        sigmoid = F.sigmoid(gate_part)
        silu = gate_part * sigmoid
        paddle.multiply(dy_part, silu, out=d_up[start:stop])
        slope = silu.subtract_(silu * sigmoid).add_(sigmoid)
        paddle.multiply(slope.multiply_(dy_part), up[start:stop], out=d_gate[start:stop])

    parallel_map(piece, row_ranges(*gate.shape), gate)
    return d_gate.reshape(shape), d_up.reshape(shape)


def _rows(x: Tensor) -> Tensor:
    return x.reshape([-1, x.shape[-1]])
