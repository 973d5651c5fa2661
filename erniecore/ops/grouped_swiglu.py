"""The routed experts of a mixture-of-experts layer: sort by expert, one SwiGLU per expert, add back. No router here."""

from __future__ import annotations

import paddle
import paddle.nn.functional as F
from paddle import Tensor


def grouped_swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """``y[t] = sum_j weights[t, j] * (silu(x[t] gate[e]) * (x[t] up[e])) down[e]`` with e = experts[t, j].

    No capacity: every assignment is computed, except those to expert -1. Gradients reach x, the three weights
    and ``weights``.

    Args:
        x: [T, H]. gate, up: [E, H, I]. down: [E, I, H]. experts: integers [T, k], -1 = dropped.
        weights: float32 [T, k].
    Returns:
        [T, H] in ``x``'s dtype.
    """
    k = experts.shape[1]
    flat = experts.flatten().numpy()
    y = paddle.zeros_like(x)
    flat_weights = weights.flatten().astype(x.dtype)
    for expert in range(gate.shape[0]):
        slots = (flat == expert).nonzero()[0]
        if len(slots) == 0:
            continue
        token, slot = paddle.to_tensor(slots // k), paddle.to_tensor(slots)
        rows = paddle.gather(x, token)
        out = paddle.matmul(F.silu(paddle.matmul(rows, gate[expert])) * paddle.matmul(rows, up[expert]), down[expert])
        out = out * paddle.gather(flat_weights, slot).unsqueeze(-1)
        y = paddle.scatter_nd_add(y, token.unsqueeze(-1), out)
    return y
