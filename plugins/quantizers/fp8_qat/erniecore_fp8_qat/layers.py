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

from erniecore.api import UsageError, ops
from erniecore.api.quantizer import RankGroup
from erniecore_fp8_qat.amax import AmaxReduction, SourcedRows
from erniecore_fp8_qat.matmul import qat_matmul
from erniecore_fp8_qat.recipes import Recipe
from erniecore_fp8_qat.rounding import check_finite
from erniecore_fp8_qat.scales import InputScale

#: what servers lay side by side: [Q | K | V] and [gate | up]
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class QatLinear(InputScale):
    """y = Q(x) Q(W) + b."""

    def __init__(self, base: nn.Linear, recipe: Recipe, warmup: int, rate: float, where: str) -> None:
        """Raises ``NumericsError`` for weights that are not finite; ``where`` names the layer."""
        super().__init__(recipe, warmup, rate)
        check_finite(base.weight, where)
        self.weight, self.bias = base.weight, base.bias

    def packed_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``ShardableWeights``: the weight is a parameter."""
        return {}

    def shard_weight(self, parameter: str, axis: int, group: RankGroup) -> dict[str, int]:
        """Part of the protocol ``ShardableWeights``."""
        if parameter == "weight":
            each = self.weight.shape[axis] // group.size
            self.recipe.check_shard(self.weight.shape, axis, each)
            self.amax = AmaxReduction(weights=group, inputs=group if axis == 0 else None)
        return {}

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        rows = x.reshape([-1, x.shape[-1]])
        y = qat_matmul(rows, self.weight, self)
        y = y.reshape([*x.shape[:-1], y.shape[-1]])
        return y if self.bias is None else y + self.bias


class QatStack(InputScale):
    """One matrix of all experts, [E, I, O]; a scale per expert, one scale for all inputs. Not called: ``matmul`` is."""

    def __init__(self, weight: Tensor, recipe: Recipe, warmup: int, rate: float, where: str) -> None:
        super().__init__(recipe, warmup, rate)
        check_finite(weight, where)
        self.kept = [weight]  # in a list: the parameter belongs to the layer above, under its own name

    def matmul(self, x: Tensor, routes: Any) -> Tensor:
        """Rows [N, I] sorted by expert -> [N, O]."""
        return qat_matmul(x, self.kept[0], self, routes)


class QatExperts(nn.Layer):  # type: ignore[misc]
    """Routed experts of which some or all of gate_proj, up_proj and down_proj compute in FP8."""

    _sources: tuple[Tensor, int] | None = None

    def __init__(self, base: nn.Layer, recipes: dict[str, Recipe], warmup: int, rate: float, where: str) -> None:
        super().__init__()
        extra = [name for name, _ in base.named_parameters() if name not in STACKED]
        if extra:
            raise UsageError("stacked experts with further parameters cannot be quantized", where=where, found=extra[0])
        for name in STACKED:
            weight = getattr(base, name)
            self.add_parameter(name, weight)
            if name in recipes:
                self.add_sublayer(f"{name}_fp8", QatStack(weight, recipes[name], warmup, rate, f"{where}.{name}"))
        for name, others in fused(recipes).items():
            self.stack_of(name).partners = [getattr(self, other) for other in others]  # type: ignore[union-attr]

    def forward(self, x_TH: Tensor, experts_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        """Weighted sum [T, H] of the selected experts' outputs."""
        x_NH, routes = ops.dispatch(x_TH, experts_Tk, self.gate_proj.shape[0])
        if self._sources is not None:
            source, count = self._sources
            rows = SourcedRows(paddle.gather(source, routes.tokens) if routes.tokens.size else source[:0], count)
            for stack in self.sublayers():
                stack.arrived = [rows]
        gate_NI, up_NI = (self.matmul(name, x_NH, routes) for name in ("gate_proj", "up_proj"))
        return ops.combine(self.matmul("down_proj", ops.swiglu(gate_NI, up_NI), routes), weights_Tk, routes)

    def expert_shapes(self) -> dict[str, tuple[int, ...]]:
        """Part of the protocol ``ExpertLayer``."""
        return {name: tuple(getattr(self, name).shape) for name in STACKED}

    def expect_tokens(self, sources: Tensor, num_ranks: int) -> None:
        """See ``SourcedExperts``: the scale of a batch is that of one rank's tokens."""
        self._sources = sources, num_ranks

    def packed_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``ShardableWeights``: the weights are parameters."""
        return {}

    def shard_weight(self, parameter: str, axis: int, group: RankGroup) -> dict[str, int]:
        """See ``ShardableWeights``: each expert is whole on one rank, its inputs come from all of them."""
        stack = self.stack_of(parameter)
        if stack is not None:
            stack.recipe.check_expert_sharding()
            stack.amax = AmaxReduction(inputs=group)
        return {}

    def matmul(self, name: str, x: Tensor, routes: Any) -> Tensor:
        """Rows through one matrix of their experts, in FP8 or not."""
        stack = self.stack_of(name)
        return ops.grouped_linear(x, getattr(self, name), routes) if stack is None else stack.matmul(x, routes)

    def stack_of(self, name: str) -> QatStack | None:
        """How ``name`` is computed in FP8; None: it is not."""
        stack: QatStack | None = getattr(self, f"{name}_fp8", None)
        return stack


def fused(recipes: Mapping[str, Recipe]) -> dict[str, list[str]]:
    """Of the matrices of one layer that compute so: name -> the others that servers lay beside it as one matrix, where all of
    them compute alike and are to have one scale (FastDeploy, ``tensor_wise_fp8.py``: a ``weight_scale`` per fused matrix)."""
    found: dict[str, list[str]] = {}
    for group in FUSED:
        shared = {recipes.get(name) for name in group}
        recipe = shared.pop() if len(shared) == 1 else None
        if recipe is not None and recipe.fused:
            found |= {name: [other for other in group if other != name] for name in group}
    return found


def rounded(layer: QatLinear | QatStack) -> Tensor:
    """What the product is computed with, transformed basis; for tests and reports."""
    weight = layer.weight if isinstance(layer, QatLinear) else layer.kept[0]
    with paddle.no_grad():
        return layer.recipe.unpack(layer.recipe.pack(weight, layer.partners))
