"""The routed experts and their gradients in numpy, one assignment after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ernie_third_party_kernels.decode_experts.reference import decode_experts
from ernie_third_party_kernels.swiglu import reference as swiglu

Array = NDArray[np.floating[Any]]

#: x [T, H]; gate, up [E, H, I]; down [E, I, H]; experts [T, k], -1 is left out; weights [T, k] -> y [T, H]
forward = decode_experts


def backward(
    x: Array, gate: Array, up: Array, down: Array, experts: NDArray[np.int64], weights: Array, dy: Array
) -> tuple[Array, ...]:
    """Gradients of x, gate, up, down and weights."""
    dx, d_gate, d_up, d_down, d_weights = (np.zeros_like(a) for a in (x, gate, up, down, weights))
    for t, row in enumerate(experts):
        for j, e in enumerate(row):
            if e < 0:
                continue
            g, u = x[t] @ gate[e], x[t] @ up[e]
            act, da = swiglu.forward(g, u), down[e] @ dy[t]
            dg, du = swiglu.backward(g, u, weights[t, j] * da)
            d_weights[t, j] = act @ da
            d_down[e] += np.outer(weights[t, j] * act, dy[t])
            d_gate[e] += np.outer(x[t], dg)
            d_up[e] += np.outer(x[t], du)
            dx[t] += gate[e] @ dg + up[e] @ du
    return dx, d_gate, d_up, d_down, d_weights
