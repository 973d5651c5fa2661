"""Layers that compute with rounded numbers and weights that are trained. They take the place of ``nn.Linear`` and of stacked
experts under their names, and keep the very parameters: rounding happens in the forward pass, from the unrounded weights, so the
optimizer, its masters and checkpoints see what they would see without a quantizer.

Letters: T tokens, N assignments sorted by expert, k experts per token, H hidden, I inputs, O outputs, E experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import paddle  # noqa: TID253
from erniecore_weight_only.schemes import STACKED
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import RankGroup, UsageError, ops
from erniecore_fp8_qat.joint import Joined, Rows
from erniecore_fp8_qat.product import product
from erniecore_fp8_qat.recipes import Recipe
from erniecore_fp8_qat.rounding import check_finite
from erniecore_fp8_qat.scales import InputScale

#: what servers lay side by side: [Q | K | V] and [gate | up]
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class TrainedLinear(InputScale):
    """y = Q(x) Q(W) + b."""

    def __init__(self, base: nn.Linear, recipe: Recipe, warmup: int, rate: float, where: str) -> None:
        """Raises ``NumericsError`` for weights that are not finite; ``where`` names the layer."""
        super().__init__(recipe, warmup, rate)
        check_finite(base.weight, where)
        self.weight, self.bias = base.weight, base.bias

    def packed_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``SharedWeights``: the weight is a parameter."""
        return {}

    def share(self, parameter: str, axis: int, group: RankGroup) -> dict[str, int]:
        """See ``SharedWeights``."""
        if parameter == "weight":
            each = self.weight.shape[axis] // group.size
            self.recipe.check_part(self.weight.shape, axis, each)
            self.joined = Joined(weights=group, inputs=group if axis == 0 else None)
        return {}

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        rows = x.reshape([-1, x.shape[-1]])
        y = product(rows, self.weight, self)
        y = y.reshape([*x.shape[:-1], y.shape[-1]])
        return y if self.bias is None else y + self.bias


class TrainedStack(InputScale):
    """One matrix of all experts, [E, I, O]; a scale per expert, one scale for all inputs. Not called: ``multiply`` is."""

    def __init__(self, weight: Tensor, recipe: Recipe, warmup: int, rate: float, where: str) -> None:
        super().__init__(recipe, warmup, rate)
        check_finite(weight, where)
        self.kept = [weight]  # in a list: the parameter belongs to the layer above, under its own name

    def multiply(self, x: Tensor, routes: Any) -> Tensor:
        """Rows [N, I] sorted by expert -> [N, O]."""
        return product(x, self.kept[0], self, routes)


class TrainedExperts(nn.Layer):  # type: ignore[misc]
    """Routed experts of which some or all of gate_proj, up_proj and down_proj compute in FP8.

    Attributes:
        row_sources: where experts are spread over ranks, in a pass: the rank whose batch each row of the input is of, int64
            [T], and how many ranks there are.
    """

    row_sources: tuple[Tensor, int] | None = None

    def __init__(self, base: nn.Layer, recipes: dict[str, Recipe], warmup: int, rate: float, where: str) -> None:
        super().__init__()
        extra = [name for name, _ in base.named_parameters() if name not in STACKED]
        if extra:
            raise UsageError("stacked experts with further parameters cannot be quantised", where=where, found=extra[0])
        for name in STACKED:
            weight = getattr(base, name)
            self.add_parameter(name, weight)
            if name in recipes:
                self.add_sublayer(f"{name}_fp8", TrainedStack(weight, recipes[name], warmup, rate, f"{where}.{name}"))
        for name, others in fused(recipes).items():
            self.stack_of(name).partners = [getattr(self, other) for other in others]  # type: ignore[union-attr]

    def forward(self, x_TH: Tensor, experts_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        """Weighted sum [T, H] of the selected experts' outputs."""
        x_NH, routes = ops.dispatch(x_TH, experts_Tk, self.gate_proj.shape[0])
        if self.row_sources is not None:
            source, count = self.row_sources
            rows = Rows(paddle.gather(source, routes.tokens) if routes.tokens.size else source[:0], count)
            for stack in self.sublayers():
                stack.arrived = [rows]
        gate_NI, up_NI = (self.multiply(name, x_NH, routes) for name in ("gate_proj", "up_proj"))
        return ops.combine(self.multiply("down_proj", ops.swiglu(gate_NI, up_NI), routes), weights_Tk, routes)

    def packed_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``SharedWeights``: the weights are parameters."""
        return {}

    def share(self, parameter: str, axis: int, group: RankGroup) -> dict[str, int]:
        """See ``SharedWeights``: each expert is whole on one rank, its inputs come from all of them."""
        stack = self.stack_of(parameter)
        if stack is not None:
            stack.recipe.check_spread()
            stack.joined = Joined(inputs=group)
        return {}

    def multiply(self, name: str, x: Tensor, routes: Any) -> Tensor:
        """Rows through one matrix of their experts, in FP8 or not."""
        stack = self.stack_of(name)
        return ops.grouped_linear(x, getattr(self, name), routes) if stack is None else stack.multiply(x, routes)

    def stack_of(self, name: str) -> TrainedStack | None:
        """How ``name`` is computed in FP8; None: it is not."""
        stack: TrainedStack | None = getattr(self, f"{name}_fp8", None)
        return stack


def fused(recipes: Mapping[str, Recipe]) -> dict[str, list[str]]:
    """Of the matrices of one layer that compute so: name -> the others that servers lay beside it as one matrix, where all of
    them compute alike and are to have one scale (FastDeploy, ``tensor_wise_fp8.py``: a ``weight_scale`` per fused matrix)."""
    found: dict[str, list[str]] = {}
    for group in FUSED:
        alike = {recipes.get(name) for name in group}
        if len(alike) == 1 and getattr(alike.pop(), "fused", False):
            found |= {name: [other for other in group if other != name] for name in group}
    return found


def rounded(layer: TrainedLinear | TrainedStack) -> Tensor:
    """What the product is computed with, transformed basis; for tests and reports."""
    weight = layer.weight if isinstance(layer, TrainedLinear) else layer.kept[0]
    with paddle.no_grad():
        return layer.recipe.unpack(layer.recipe.pack(weight, layer.partners))
