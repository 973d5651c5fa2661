"""From layers to a ``DecoderPlan``: what a model plugin asks about its layers when it describes itself. A layer that cannot
be described is answered with None, and the model then runs layer by layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paddle import nn

from erniecore.types import Projection

#: what somebody may have put in front of a layer's own method
METHODS = ("forward", "features", "run", "logits", "head")


def projection_of(layer: Any, parameter: str = "weight") -> Projection | None:
    """A linear layer, or one stack of matrices of a layer of experts.

    A layer of another kind has a method ``projection(parameter)`` that says it, or cannot be described: what it stores does
    not say what it computes.
    """
    if hasattr(layer, "projection"):
        said: Projection | None = layer.projection(parameter)
        return said
    if parameter == "weight":
        return Projection(layer.weight, layer.weight.shape[-1], layer.bias) if type(layer) is nn.Linear else None
    weight = getattr(layer, parameter)
    return Projection(weight, weight.shape[-1])


def untouched(layers: Iterable[nn.Layer]) -> bool:
    """Whether these layers do what their classes say: no hooks, no method replaced on a single layer."""
    return not any(
        layer._forward_pre_hooks or layer._forward_post_hooks or any(name in layer.__dict__ for name in METHODS)
        for layer in layers
    )
