"""Packed layers whose inputs are divided by factors of their own (AWQ): y = (x / s) Q(s W) + b. Otherwise those of
``weight_only``; the factors are ``<name>.input_scale`` float32 [I]. They are ``erniecore.api.PackedLayer``.
"""

from __future__ import annotations

from typing import Any

import paddle  # noqa: TID253
from erniecore_weight_only.layers import PackedExperts, PackedLinear, PackedWeight
from erniecore_weight_only.matmul import multiply, multiply_grouped
from erniecore_weight_only.schemes import Scheme
from paddle import Tensor, nn  # noqa: TID253


class ScaledLinear(PackedLinear):
    """A linear layer."""

    def __init__(self, base: nn.Linear, scheme: Scheme, where: str) -> None:
        super().__init__(base, scheme, where)
        self.register_buffer("input_scale", paddle.ones([base.weight.shape[0]]))

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        y = self.multiply("weight", x)
        return y if self.bias is None else y + self.bias

    def multiply(self, parameter: str, x: Tensor, routes: Any = None) -> Tensor:
        """See ``PackedLayer``."""
        return multiply(x / self.input_scale.astype(x.dtype), self)

    def unpacked(self, parameter: str) -> Tensor:
        """See ``PackedLayer``."""
        return self.whole() / self.input_scale.unsqueeze(-1).astype(self.compute_dtype)


class ScaledExperts(PackedExperts):
    """Stacked experts; all experts share the factors of a matrix, ``<matrix>.input_scale``."""

    def __init__(self, base: nn.Layer, schemes: dict[str, Scheme], where: str) -> None:
        super().__init__(base, schemes, where)
        for name in schemes:
            getattr(self, name).register_buffer("input_scale", paddle.ones([self.shape_of(name)[1]]))

    def multiply(self, parameter: str, x: Tensor, routes: Any = None) -> Tensor:
        """See ``PackedLayer``; also for a matrix that is not packed."""
        weight = getattr(self, parameter)
        if not isinstance(weight, PackedWeight):
            return super().multiply(parameter, x, routes)
        return multiply_grouped(x / weight.input_scale.astype(x.dtype), weight, routes)

    def unpacked(self, parameter: str) -> Tensor:
        """See ``PackedLayer``."""
        weight = getattr(self, parameter)
        numbers: Tensor = weight.whole() / weight.input_scale.reshape([1, -1, 1]).astype(self.compute_dtype)
        return numbers
