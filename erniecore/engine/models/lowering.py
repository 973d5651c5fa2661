"""Helpers with which a model plugin describes its layers as a ``DecoderPlan``. Where a layer cannot be described the result
is None, and the model runs layer by layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from erniecore_ops.matmul import is_plain_linear
from paddle import nn

from erniecore.types.decoder import Projection
from erniecore.types.protocols import ProjectionLayer

#: methods that define what a layer computes
METHODS = ("forward", "features", "run", "logits", "head")


def projection_of(layer: Any, parameter: str = "weight") -> Projection | None:
    """The projection of a linear layer, or of one stacked matrix of a layer of experts.

    A layer of another class describes itself with a method ``projection(parameter)``, or cannot be described: what it stores
    does not determine what it computes.
    """
    if isinstance(layer, ProjectionLayer):
        described: Projection | None = layer.projection(parameter)
        return described
    if parameter == "weight":
        return Projection(layer.weight, layer.weight.shape[-1], layer.bias) if is_plain_linear(layer) else None
    weight = getattr(layer, parameter)
    return Projection(weight, weight.shape[-1])


def computes_as(model: nn.Layer, kind: type[nn.Layer]) -> bool:
    """Whether ``model`` is a ``kind`` and its own class, such as that of an adapted model, overrides none of ``METHODS``."""
    if not isinstance(model, kind):
        return False
    classes = type(model).__mro__
    return not any(name in vars(cls) for cls in classes[: classes.index(kind)] for name in METHODS)


def without_hooks(layers: Iterable[nn.Layer]) -> bool:
    """Whether these layers compute what their classes define: no hooks, no method replaced on an instance."""
    return not any(
        layer._forward_pre_hooks or layer._forward_post_hooks or any(name in layer.__dict__ for name in METHODS)
        for layer in layers
    )
