"""Layers with quantized weights, as which QAT layers are exported. They are ``erniecore.api.PackedLayer``; the weight is
``<name>.quant_weight``, uint8 bits of E4M3 in the shape of the weight, and ``<name>.weight_scale``; the scale of the
inputs, where it is kept, ``<name>.activation_scale``. Their output equals that of the trained layer bit for bit.

Letters: I inputs, O outputs, E experts; ``..`` is experts, or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import paddle  # noqa: TID253
from erniecore_weight_only.layers import PackedExpertsBase, PackedLinearBase
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api.layers import add_buffers, fill, filled, is_empty
from erniecore.api.quantizer import StoredWeight
from erniecore_fp8_qat import rounding
from erniecore_fp8_qat.layers import fused
from erniecore_fp8_qat.matmul import quantized_matmul
from erniecore_fp8_qat.recipes import Packed, Recipe
from erniecore_fp8_qat.scales import InputScale

#: numbers of a stack that are packed together
_AT_ONCE = 1 << 26


class PackingContext(NamedTuple):
    """What a packed weight takes over or has to agree with.

    Attributes:
        trained: the layer whose input scale is taken over. partners: see ``Recipe.pack``.
        factors: float32 [I]: inputs are divided by them, the weight is multiplied.
    """

    trained: InputScale | None = None
    partners: Sequence[Tensor] = ()
    factors: Tensor | None = None


class PackedWeight(InputScale):
    """Quantized values and scales of one weight, [I, O] or [E, I, O].

    Attributes:
        shape: of the weight. compute_dtype: of the numbers. code_dtypes: see ``FloatCodes``.
        input_scale: factors of the inputs [I], where there are some.
    """

    def __init__(self, weight: Tensor, recipe: Recipe, where: str, context: PackingContext | None = None) -> None:
        """Raises ``NumericsError`` like the trained layer."""
        super().__init__(recipe, 0, 1.0)
        self.input_scale: Tensor | None
        trained, partners, factors = context or PackingContext()
        self.shape, self.compute_dtype = tuple(weight.shape), weight.dtype
        if factors is None:
            self.input_scale = None
        else:
            self.register_buffer("input_scale", factors)

        def make() -> dict[str, Tensor]:
            rounding.check_finite(filled(weight), where)
            packed = _packed(weight, recipe, [filled(other) for other in partners], factors)
            return {"quant_weight": packed.qweight, "weight_scale": packed.scales}

        stored = recipe.stored_shapes(self.shape)
        self.code_dtypes = {name: "F8_E4M3" for name, (_, dtype) in stored.items() if dtype == "uint8"}
        add_buffers(self, stored, make)
        if not is_empty(weight):
            fill(self)
        if trained is not None:
            self.take_scale(trained)
        self.eval()

    def train(self) -> None:
        """Stays in evaluation mode: nothing here is trained, so no input scales are recorded."""

    def dequantize(self) -> Tensor:
        """The weight as the recipe dequantizes it, in the transformed basis."""
        with paddle.no_grad():
            return self.recipe.unpack(Packed(self.quant_weight, self.weight_scale))

    def dequantize_weight(self) -> Tensor:
        """The dequantized weight [.., I, O], with the Hadamard transform undone."""
        last = len(self.shape) - 1
        order = [*range(last - 1), last, last - 1]
        with paddle.no_grad():
            weight = self.recipe.transform(self.dequantize().transpose(order)).transpose(order)
            return (weight if self.input_scale is None else weight / self.input_scale.unsqueeze(-1)).astype(
                self.compute_dtype
            )

    def stored_weight(self) -> StoredWeight:
        """What is stored, for exporters."""
        scale = self.activation_scale if self.recipe.static else None
        hadamard_block = self.recipe.block
        return StoredWeight(self.recipe.quant_dtype, self.quant_weight, self.weight_scale, 0, scale, hadamard_block)

    def apply_weight(self, x: Tensor, routes: Any = None) -> Tensor:
        """[.., I] -> [.., O]; of a stack rows [N, I] sorted by expert."""
        if self.input_scale is not None:
            x = x / self.input_scale.astype(x.dtype)
        y = quantized_matmul(x.reshape([-1, x.shape[-1]]), self, routes)
        return y.reshape([*x.shape[:-1], y.shape[-1]])

    def shard_axes(self, axis: int, count: int) -> dict[str, int]:
        """Nothing trains on these codes, so nobody shares them."""
        raise ValueError("exported FP8 weights are for inference, not for training")


def _packed(weight: Tensor, recipe: Recipe, partners: Sequence[Tensor], factors: Tensor | None) -> Packed:
    """Some experts of a stack at a time: what is made on the way is as large as they are."""
    if weight.ndim == 2:
        return _packed_at_once(weight, recipe, partners, factors)
    step = max(1, _AT_ONCE // prod(weight.shape[1:]))
    parts = [
        _packed_at_once(weight[start : start + step], recipe, [p[start : start + step] for p in partners], factors)
        for start in range(0, weight.shape[0], step)
    ]
    return parts[0] if len(parts) == 1 else Packed(*(paddle.concat(tensors) for tensors in zip(*parts, strict=True)))


def _packed_at_once(weight: Tensor, recipe: Recipe, partners: Sequence[Tensor], factors: Tensor | None) -> Packed:
    if factors is not None:
        weight = weight.detach().astype("float32") * factors.unsqueeze(-1)
    return recipe.pack(weight, partners)


class PackedLinear(PackedLinearBase, PackedWeight):
    """A linear layer: y = Q(x) W' + b."""

    def __init__(self, base: Any, recipe: Recipe, where: str, context: PackingContext | None = None) -> None:
        super().__init__(base.weight, recipe, where, context)
        self.bias = base.bias


class PackedExperts(PackedExpertsBase):
    """Routed experts, trained in FP8 or not."""

    def __init__(
        self, base: Any, recipes: dict[str, Recipe], where: str, factors: Mapping[str, Tensor] | None = None
    ) -> None:
        """``factors``: matrix -> of its inputs, shared by all experts."""
        self._context = {
            name: PackingContext(getattr(base, f"{name}_fp8", None), factors=(factors or {}).get(name))
            for name in recipes
        }
        for name, others in fused(recipes).items():
            self._context[name] = self._context[name]._replace(partners=[getattr(base, other) for other in others])
        super().__init__(base, recipes, where)
        self._context = {}

    def packed(self, base: Any, name: str, scheme: Recipe, where: str) -> nn.Layer:
        """With the input scale that was trained, where there is one."""
        return PackedWeight(getattr(base, name), scheme, where, self._context[name])
