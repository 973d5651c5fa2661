"""Weights that are more than parameters, cut among ranks: codes with their scales are cut like the weight that they stand for,
and layers that round by a scale of the whole weight learn who has the rest. What a form of codes allows is its layer's
matter: see ``erniecore.api.ShardableWeights``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ConfigError
from erniecore.api.parallel import ShardableWeights
from erniecore_hybrid_parallel.comm import Comm


def packed_names(model: nn.Layer) -> Iterator[tuple[str, nn.Layer, tuple[int, ...]]]:
    """(name, layer, shape) of each weight that is stored as codes, under the name that the parameter had."""
    for name, layer in model.named_sublayers():
        if isinstance(layer, ShardableWeights):
            for parameter, shape in layer.packed_shapes().items():
                yield f"{name}.{parameter}", layer, shape


def tensors_of(layer: Any, name: str, axis: int, comm: Comm, key: str) -> dict[str, tuple[Tensor, int]]:
    """Tell ``layer`` that ``comm`` shares its weight ``name`` along ``axis``: full name -> the tensors that are to be cut with
    it, and the axes. Nothing for a layer that has parameters only. Raises ``ConfigError`` at ``key`` with the reason why not.
    """
    sharing: Any = layer
    if not isinstance(layer, ShardableWeights):
        return {}
    owner, _, parameter = name.rpartition(".")
    try:
        axes = layer.shard_weight(parameter, axis, comm)
    except ValueError as error:
        raise ConfigError.at(key, f"{comm.size} ranks cannot share {name} as it is quantized: {error}") from error
    buffers = dict(sharing.named_buffers())
    return {f"{owner}.{below}": (buffers[below], at) for below, at in axes.items()}
