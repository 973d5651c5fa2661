"""Packed layers whose inputs are divided by factors of their own (AWQ): y = (x / s) Q(s W) + b. Otherwise those of
``weight_only``; the factors are ``<name>.input_scale`` float32 [I]. They are ``erniecore.api.PackedLayer``.
"""

from __future__ import annotations

from typing import Any

import paddle  # noqa: TID253
from erniecore_weight_only.layers import PackedExperts, PackedLinear, PackedWeight
from erniecore_weight_only.matmul import grouped_matmul
from erniecore_weight_only.schemes import Scheme
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ops


class ScaledLinear(PackedLinear):
    """A linear layer with a packed weight."""

    def __init__(self, base: nn.Linear, scheme: Scheme, where: str) -> None:
        super().__init__(base, scheme, where)
        self.register_buffer("input_scale", paddle.ones([base.weight.shape[0]]))

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        y = self.matmul("weight", x)
        return y if self.bias is None else y + self.bias

    def matmul(self, parameter: str, x: Tensor, routes: Any = None) -> Tensor:
        """Part of the protocol ``PackedLayer``."""
        return ops.quantized_linear(x / self.input_scale.astype(x.dtype), self.matrix)

    def dequantized(self, parameter: str) -> Tensor:
        """Part of the protocol ``PackedLayer``."""
        return self.dequantize_weight() / self.input_scale.unsqueeze(-1).astype(self.compute_dtype)


class ScaledExperts(PackedExperts):
    """Stacked experts; all experts share the factors of a matrix, ``<matrix>.input_scale``."""

    def __init__(self, base: nn.Layer, schemes: dict[str, Scheme], where: str) -> None:
        super().__init__(base, schemes, where)
        for name in schemes:
            getattr(self, name).register_buffer("input_scale", paddle.ones([self.shape_of(name)[1]]))

    def matmul(self, parameter: str, x: Tensor, routes: Any = None) -> Tensor:
        """See ``PackedLayer``; also for a matrix that is not packed."""
        weight = getattr(self, parameter)
        if not isinstance(weight, PackedWeight):
            return super().matmul(parameter, x, routes)
        return grouped_matmul(x / weight.input_scale.astype(x.dtype), weight, routes)

    def dequantized(self, parameter: str) -> Tensor:
        """Part of the protocol ``PackedLayer``."""
        weight = getattr(self, parameter)
        dequantized: Tensor = weight.dequantize_weight() / weight.input_scale.reshape([1, -1, 1]).astype(
            self.compute_dtype
        )
        return dequantized
