"""Layers of FP8 codes: what training in FP8 is exported as. They are ``erniecore.api.PackedLayer``; the weight is
``<name>.quant_weight``, uint8 bits of E4M3 in the shape of the weight, and ``<name>.weight_scale``; the scale of the
inputs, where it is kept, ``<name>.activation_scale``. Their output equals that of the trained layer bit for bit.

Letters: I inputs, O outputs, E experts; ``..`` is experts, or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import paddle  # noqa: TID253
from erniecore_weight_only.schemes import STACKED
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import StoredWeight, ops
from erniecore_fp8_qat import rounding
from erniecore_fp8_qat.layers import fused
from erniecore_fp8_qat.product import packed_product
from erniecore_fp8_qat.recipes import Packed, Recipe
from erniecore_fp8_qat.scales import InputScale


class Beside(NamedTuple):
    """What a packed weight takes over or has to agree with.

    Attributes:
        trained: the layer whose input scale is taken over. partners: see ``Recipe.pack``.
        factors: float32 [I]: inputs are divided by them, the weight is multiplied.
    """

    trained: InputScale | None = None
    partners: Sequence[Tensor] = ()
    factors: Tensor | None = None


class PackedWeight(InputScale):
    """Codes and scales of one weight, [I, O] or [E, I, O].

    Attributes:
        shape: of the weight. compute_dtype: of the numbers. input_scale: factors of the inputs [I], where there are some.
    """

    def __init__(self, weight: Tensor, recipe: Recipe, where: str, beside: Beside | None = None) -> None:
        """Raises ``NumericsError`` like the trained layer."""
        super().__init__(recipe, 0, 1.0)
        self.input_scale: Tensor | None
        rounding.check_finite(weight, where)
        trained, partners, factors = beside or Beside()
        self.shape, self.compute_dtype = tuple(weight.shape), weight.dtype
        if factors is None:
            self.input_scale = None
        else:
            self.register_buffer("input_scale", factors)
            weight = weight.detach().astype("float32") * factors.unsqueeze(-1)
        packed = recipe.pack(weight, partners)
        self.register_buffer("quant_weight", packed.codes)
        self.register_buffer("weight_scale", packed.scales)
        if trained is not None:
            self.take_scale(trained)
        self.eval()

    def train(self) -> None:
        """Nothing here is trained, so nothing is noted."""

    def numbers(self) -> Tensor:
        """As the recipe unpacks it, in its basis."""
        with paddle.no_grad():
            return self.recipe.unpack(Packed(self.quant_weight, self.weight_scale))

    def whole(self) -> Tensor:
        """What the codes stand for, [.., I, O], in the basis of the weight."""
        last = len(self.shape) - 1
        order = [*range(last - 1), last, last - 1]
        with paddle.no_grad():
            weight = self.recipe.turn(self.numbers().transpose(order)).transpose(order)
            return (weight if self.input_scale is None else weight / self.input_scale.unsqueeze(-1)).astype(
                self.compute_dtype
            )

    def stored_weight(self) -> StoredWeight:
        """What is stored, for exporters."""
        scale = self.activation_scale if self.recipe.static else None
        mixed = getattr(self.recipe, "block", 1)
        return StoredWeight(self.recipe.form, self.quant_weight, self.weight_scale, 0, scale, mixed)

    def times(self, x: Tensor, routes: Any = None) -> Tensor:
        """[N, I] -> [N, O]."""
        if self.input_scale is not None:
            x = x / self.input_scale.astype(x.dtype)
        return packed_product(x, self, routes)


class PackedLinear(PackedWeight):
    """y = Q(x) W' + b."""

    def __init__(self, base: Any, recipe: Recipe, where: str, beside: Beside | None = None) -> None:
        super().__init__(base.weight, recipe, where, beside)
        self.bias = base.bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        y = self.multiply("weight", x)
        return y if self.bias is None else y + self.bias

    def packed_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``PackedLayer``."""
        return {"weight": self.shape}

    def unpacked(self, parameter: str) -> Tensor:
        """See ``PackedLayer``."""
        return self.whole()

    def stored(self, parameter: str) -> StoredWeight:
        """See ``StoredWeight``."""
        return self.stored_weight()

    def multiply(self, parameter: str, x: Tensor, routes: Any = None) -> Tensor:
        """See ``PackedLayer``."""
        y = self.times(x.reshape([-1, x.shape[-1]]))
        return y.reshape([*x.shape[:-1], y.shape[-1]])


class PackedExperts(nn.Layer):  # type: ignore[misc]
    """Routed experts of which some or all of gate_proj, up_proj and down_proj are codes."""

    def __init__(
        self, base: Any, recipes: dict[str, Recipe], where: str, factors: Mapping[str, Tensor] | None = None
    ) -> None:
        """``factors``: matrix -> of its inputs, shared by all experts."""
        super().__init__()
        self.compute_dtype = base.gate_proj.dtype
        partners = {name: [getattr(base, other) for other in others] for name, others in fused(recipes).items()}
        for name in STACKED:
            weight = getattr(base, name)
            if name in recipes:
                trained, given = getattr(base, f"{name}_fp8", None), (factors or {}).get(name)
                beside = Beside(trained, partners.get(name, ()), given)
                self.add_sublayer(name, PackedWeight(weight, recipes[name], f"{where}.{name}", beside))
            else:
                self.add_parameter(name, weight)

    def forward(self, x_TH: Tensor, experts_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        """Weighted sum [T, H] of the selected experts' outputs."""
        x_NH, routes = ops.dispatch(x_TH, experts_Tk, int(self.gate_proj.shape[0]))
        gate_NI, up_NI = (self.multiply(name, x_NH, routes) for name in ("gate_proj", "up_proj"))
        return ops.combine(self.multiply("down_proj", ops.swiglu(gate_NI, up_NI), routes), weights_Tk, routes)

    def packed_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``PackedLayer``."""
        return {name: layer.shape for name, layer in self.named_children()}

    def unpacked(self, parameter: str) -> Tensor:
        """See ``PackedLayer``."""
        weight: PackedWeight = getattr(self, parameter)
        return weight.whole()

    def stored(self, parameter: str) -> StoredWeight:
        """See ``StoredWeight``."""
        weight: PackedWeight = getattr(self, parameter)
        return weight.stored_weight()

    def multiply(self, parameter: str, x: Tensor, routes: Any = None) -> Tensor:
        """See ``PackedLayer``; also for a matrix that is not packed."""
        weight = getattr(self, parameter)
        return weight.times(x, routes) if isinstance(weight, PackedWeight) else ops.grouped_linear(x, weight, routes)
