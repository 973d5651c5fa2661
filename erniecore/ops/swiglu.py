"""The gated activation of the feed-forward layers."""

from __future__ import annotations

import paddle.nn.functional as F
from paddle import Tensor


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up``, elementwise; both of one shape. Source: Shazeer, "GLU Variants Improve Transformer" (2020)."""
    return F.silu(gate) * up
