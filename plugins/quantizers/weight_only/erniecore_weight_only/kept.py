"""Layers whose weights stay in bfloat16: those of ``layers`` with another buffer, and no scales. Nothing is rounded where the
file has bfloat16 already; then the weight is a view of the mapped file, in the order that the file has.

    bf16    quant_weight bfloat16 [.., I, O], or [.., O, I] where ``swapped``

Letters: N rows, I inputs, O outputs, E experts; ``..`` is E or nothing.
"""

from __future__ import annotations

from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ops
from erniecore.api.decoding import Projection
from erniecore.api.quantizer import StoredWeight
from erniecore_weight_only.codec import bfloat16_values
from erniecore_weight_only.layers import PackedExperts, PackedLinear, PackedWeight
from erniecore_weight_only.packing import Kinds
from erniecore_weight_only.schemes import Scheme


class KeptWeight(PackedWeight):
    """One weight in bfloat16; products are made in the dtype of the rows.

    Attributes:
        swapped: whether it is [.., O, I].
    """

    swapped: bool

    def store(self, weight: Tensor, where: str) -> None:
        """Take what the file has, or round to nearest. Raises ``NumericsError`` for values that are not finite."""
        values, self.swapped = bfloat16_values(weight, where)
        values.stop_gradient = True
        self.register_buffer("quant_weight", values)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight, [I, O] or [E, I, O], as much as is here."""
        *stack, first, second = self.quant_weight.shape
        return (*stack, second, first) if self.swapped else (*stack, first, second)

    def dequantize(self) -> Tensor:
        """W transposed, [.., O, I]; new, without gradient."""
        with paddle.no_grad():
            wide = self.quant_weight.astype(self.compute_dtype)
            last = wide.ndim - 1
            return wide if self.swapped else wide.transpose([*range(last - 1), last, last - 1]).contiguous()

    def stored_weight(self) -> StoredWeight:
        """What is stored, for exporters: there are no scales."""
        return StoredWeight("bf16", self.quant_weight, paddle.zeros([0]))

    def apply_weight(self, x: Tensor, routes: Any = None) -> Tensor:
        """[.., I] -> [.., O]; of a stack rows [N, I] sorted by expert."""
        if routes is None:
            return ops.frozen_linear(x, self.quant_weight, transposed=self.swapped)
        return ops.frozen_grouped_linear(x, self.quant_weight, routes, transposed=self.swapped)

    def described(self, bias: Tensor | None = None) -> Projection:
        """The weight as kernels take it."""
        return Projection(self.quant_weight, self.shape[-1], bias, transposed=self.swapped)

    def shard_axes(self, axis: int, count: int) -> dict[str, int]:
        """See ``ShardableWeights.shard_weight``: any shard has the values of the whole."""
        last = len(self.shape) - 1
        return {"quant_weight": {last: last - 1, last - 1: last}.get(axis, axis) if self.swapped else axis}


class KeptLinear(KeptWeight, PackedLinear):
    """y = x W + b."""

    def projection(self, parameter: str) -> Projection | None:
        """The layer as a kernel takes it: what is stored says all of it."""
        return self.described(self.bias)


class KeptExperts(PackedExperts):
    """Routed experts, each of their matrices in bfloat16 or as it was."""

    def packed(self, base: Any, name: str, scheme: Scheme, where: str) -> nn.Layer:
        """See ``PackedExpertsBase.packed``: what is kept has no scheme to choose."""
        return KeptWeight(getattr(base, name), scheme, where)

    def projection(self, parameter: str) -> Projection | None:
        """One of the matrices as a kernel takes it, kept or as it was."""
        weight: Any = getattr(self, parameter)
        return Projection(weight, weight.shape[-1]) if isinstance(weight, Tensor) else weight.described()


KINDS = Kinds(KeptLinear, KeptExperts)
