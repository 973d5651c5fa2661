"""Which inputs of an operator get no gradient: a backward pass must return ``None`` for exactly those."""

from __future__ import annotations

from paddle import Tensor


def frozen(*inputs: Tensor) -> tuple[bool, ...]:
    """To be asked in the forward pass: what recomputation hands back later no longer says it."""
    return tuple(bool(x.stop_gradient) for x in inputs)
