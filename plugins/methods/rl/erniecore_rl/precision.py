"""A sampler that is not quite the learner: weights rounded or disturbed for the time of a rollout, which is how a mismatch of the
two is made on purpose. Only values change; dtypes, formats and kernels stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253

if TYPE_CHECKING:
    from paddle import Tensor

#: mantissa bits of float32
FULL = 23


def rounded_mantissa(values: Tensor, bits: int) -> Tensor:
    """``values`` (floating, any shape) with ``bits`` mantissa bits (1 … 22), to nearest, ties to even; float32, no gradient.

    7 bits are those of bfloat16, 3 those of E4M3 at the best scale; exponents are never limited. It works on the bits of a
    float32: half of the last kept place is added, less one where that place is even, and what is behind it is dropped.
    """
    dropped = FULL - bits
    whole = values.detach().astype("float32").view("int32")
    odd = (whole // (1 << dropped)) & paddle.ones_like(whole)
    kept = (whole + odd + ((1 << (dropped - 1)) - 1)) & paddle.full_like(whole, -(1 << dropped))
    return kept.view("float32")


def disturbed(values: Tensor, noise: float, generator: np.random.Generator) -> Tensor:
    """``values`` plus Gaussian noise of ``noise`` times their root mean square; float32, no gradient."""
    whole = values.detach().astype("float32")
    added = paddle.to_tensor(generator.standard_normal(whole.shape, np.float32))
    return whole + added * (noise * float((whole * whole).mean()) ** 0.5)


@contextmanager
def inexact_weights(model: Any, *, mantissa: int = 0, noise: float = 0.0, seed: int = 0) -> Iterator[None]:
    """``model`` with every floating matrix disturbed and rounded to ``mantissa`` bits, 0: not; afterwards bit for bit as it was.

    ``seed`` and the order of the matrices decide about the noise.
    """
    matrices = [p for p in model.parameters() if (mantissa or noise) and p.ndim > 1 and p.is_floating_point()]
    kept, generator = [p.detach().clone() for p in matrices], np.random.default_rng(seed)
    try:
        with paddle.no_grad():
            for parameter in matrices:
                values = disturbed(parameter, noise, generator) if noise else parameter
                values = rounded_mantissa(values, mantissa) if mantissa else values
                paddle.assign(values.astype(parameter.dtype), output=parameter)
        yield
    finally:
        with paddle.no_grad():
            for parameter, values in zip(matrices, kept, strict=True):
                paddle.assign(values, output=parameter)
