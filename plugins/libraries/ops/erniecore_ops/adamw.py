"""AdamW over many tensors, in place, and the sum of their squares. Whose moments these are, which parameters decay and at
which rates is the optimizer's matter.

    m ← β₁ m + (1 − β₁) g      v ← β₂ v + (1 − β₂) g²
    θ ← θ (1 − η λ) − η · (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)         Loshchilov & Hutter 2019, algorithm 2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import paddle
from paddle import Tensor, _C_ops

from erniecore_ops.kernels import replaceable


class Terms(NamedTuple):
    """What all tensors of an update share. ``power1``, ``power2``: β₁ᵗ and β₂ᵗ. ``scale`` multiplies the gradients first."""

    beta1: float
    beta2: float
    epsilon: float
    power1: float
    power2: float
    scale: float = 1.0


@replaceable
def adamw_(
    targets: Sequence[Tensor],
    gradients: Sequence[Tensor],
    firsts: Sequence[Tensor],
    seconds: Sequence[Tensor],
    rates: Sequence[float],
    decays: Sequence[float],
    terms: Terms,
) -> Tensor:
    """Update every target and its moments, with Paddle's fused kernel for one tensor after the other.

    Args:
        targets: float32. gradients: of the same sizes, any floating dtype. firsts, seconds: the moments, float32 or a
            lower precision, which is computed in float32 and rounded. rates, decays: η and λ of each target.

    Returns:
        float32 scalar, still on the device: finite only if all targets and moments are. Not finite also where one of them is
        beyond 1e19, so look at them one by one then. A first moment that is not finite shows in its target.
    """
    # the kernel wants powers and rates as tensors, and ignores its own factor of the rate on the CPU
    powers = paddle.to_tensor([terms.power1]), paddle.to_tensor([terms.power2])
    as_tensor = {rate: paddle.to_tensor([rate]) for rate in set(rates)}
    groups = zip(targets, gradients, firsts, seconds, rates, decays, strict=True)
    for target, raw, first, second, rate, decay in groups:
        gradient = as_float32(raw) * terms.scale if terms.scale != 1.0 else as_float32(raw)
        m, v = as_float32(first), as_float32(second)
        _C_ops.adamw_(
            target, gradient, as_tensor[rate], m, v, None, *powers, None, None,
            terms.beta1, terms.beta2, terms.epsilon, 1.0, decay, decay != 0.0,
            False, 1000, False, True, False,
        )  # fmt: skip
        # the last flags: no lazy mode, rows per thread, no multi precision, powers are global, no amsgrad
        if m is not first:
            first.set_value(m.astype(first.dtype))
            second.set_value(v.astype(second.dtype))
    return square_sum([*targets, *seconds])


@replaceable
def square_sum(tensors: Sequence[Tensor]) -> Tensor:
    """Σ x² over all tensors, float32 scalar, still on the device; 0 for none. Not finite if one of them is not."""
    squares = [_C_ops.squared_l2_norm(as_float32(x)).reshape([1]) for x in tensors]
    return paddle.concat(squares).sum() if squares else paddle.zeros([])


def as_float32(tensor: Tensor) -> Tensor:
    """The tensor itself where it is float32."""
    return tensor if tensor.dtype == paddle.float32 else tensor.astype("float32")
