"""A layer with experts as a ``DecoderBlock``; see the dense model's module of this name."""

from __future__ import annotations

from typing import Any

from erniecore_ernie45.decoding import block_of, mlp_of

from erniecore.api.decoding import DecoderBlock, ProjectionLayer, RoutedExperts, projection_of
from erniecore_ernie45_moe.layers import Experts, Gate, MoeBlock, Statics


def routed_block(layer: Any) -> DecoderBlock | None:
    """A layer with experts; None with a capacity, which counts the tokens of whole rows."""
    block = layer.mlp
    if type(block) is not MoeBlock or block.capacity:
        return None
    experts = routed_experts(block)
    shared = None if block.shared_experts is None else mlp_of(block.shared_experts)
    if experts is None or (shared is None and block.shared_experts is not None):
        return None
    return block_of(layer, {"mlp": shared, "experts": experts})


def routed_experts(block: MoeBlock) -> RoutedExperts | None:
    """Router and stacked experts; the matrices may be packed."""
    experts: Any = block.experts
    if type(block.gate) is not Gate or type(block.moe_statics) is not Statics:
        return None
    if type(experts) is not Experts and not isinstance(experts, ProjectionLayer):
        return None
    gate, up, down = (projection_of(experts, f"{name}_proj") for name in ("gate", "up", "down"))
    if gate is None or up is None or down is None:
        return None
    arch = block.arch
    return RoutedExperts(
        router=block.gate.weight,
        selection_bias=block.moe_statics.e_score_correction_bias,
        gate=gate,
        up=up,
        down=down,
        num_selected=arch.num_selected,
        norm_min=arch.norm_min,
        scoring=arch.scoring,
    )
