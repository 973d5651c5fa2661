"""Which layers a part of a pipeline has: contiguous layers, so that the slowest part is as fast as it can be. What a part
costs is the products of one token: those of its layers, of the head on the last part, and of whatever else is only there.
No paddle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from erniecore.api import ConfigError
from erniecore.api.parallel import DecoderShape, LayerShape
from erniecore_hybrid_parallel.config import HybridConfig


@dataclass(frozen=True)
class Costs:
    """Products per token: of each layer, and what the first and the last part do beside their layers."""

    layers: tuple[float, ...]
    first: float
    last: float

    def per_stage(self, split: Sequence[int]) -> list[float]:
        """Cost of each virtual stage of a split."""
        ends = list(accumulate(split))
        found = [sum(self.layers[end - count : end]) for count, end in zip(split, ends, strict=True)]
        found[0] += self.first
        found[-1] += self.last
        return found


def costs_of(shape: DecoderShape) -> Costs:
    """The embedding moves a row and multiplies nothing; each prediction layer brings its joint projection and the head
    once more."""
    hidden, head = shape.hidden, float(shape.hidden * shape.vocab)
    mtp = sum(layer_cost(hidden, layer) + 2 * hidden * hidden + head for layer in shape.mtp_layers)
    return Costs(tuple(layer_cost(hidden, layer) for layer in shape.layers), float(hidden), head + mtp)


def layer_cost(hidden: int, layer: LayerShape) -> float:
    """Products of the matrices that one token meets in one layer."""
    attention = 2 * hidden * layer.head_dim * (layer.heads + layer.kv_heads)
    experts = hidden * layer.experts + 3 * hidden * layer.expert * layer.selected if layer.experts else 0
    return float(attention + 3 * hidden * layer.mlp + experts)


def balanced(costs: Costs, virtual_stages: int, speeds: Sequence[float] = ()) -> tuple[int, ...]:
    """Layers of each part, at least one: of all splits the one whose most expensive part takes least; of these the most even
    one (least sum of squares).

    Args:
        speeds: of the parts, where they differ: a cost counts as cost / speed.
    """
    count, speed = len(costs.layers), speeds or (1.0,) * virtual_stages
    assert len(speed) == virtual_stages
    before = [0.0, *accumulate(costs.layers)]
    #: best[i]: (most expensive, squares, split) of the first i layers in the parts so far
    best: list[tuple[float, float, tuple[int, ...]] | None] = [(0.0, 0.0, ())] + [None] * count
    for virtual_stage in range(virtual_stages):
        extra = (costs.first if virtual_stage == 0 else 0.0) + (
            costs.last if virtual_stage == virtual_stages - 1 else 0.0
        )
        later = virtual_stages - 1 - virtual_stage
        following: list[tuple[float, float, tuple[int, ...]] | None] = [None] * (count + 1)
        for end in range(virtual_stage + 1, count - later + 1):
            choices = []
            for start in range(virtual_stage, end):
                earlier = best[start]
                if earlier is not None:
                    cost = (before[end] - before[start] + extra) / speed[virtual_stage]
                    choices.append((max(earlier[0], cost), earlier[1] + cost * cost, (*earlier[2], end - start)))
            following[end] = min(choices) if choices else None
        best = following
    found = best[count]
    assert found is not None
    return found[2]


def choose_split(config: HybridConfig, shape: DecoderShape | None) -> tuple[int, ...]:
    """Layers of each of the ``pipeline x chunks`` parts, in the order of the model; empty without a pipeline.

    Raises:
        ConfigError: more parts than layers, a list that does not fit, or a model that says nothing of its layers.
    """
    virtual_stages = config.pipeline * config.chunks
    if config.pipeline == 1:
        for key, neutral in (("chunks", 1), ("split", "automatic")):
            if getattr(config, key) != neutral:
                raise ConfigError.at(f"parallel.{key}", "has no meaning without parallel.pipeline above 1")
        return ()
    if shape is None:
        raise ConfigError.at("parallel.pipeline", "this model does not say what its layers are like")
    count = len(shape.layers)
    if virtual_stages > count:
        key = "parallel.chunks" if config.pipeline <= count else "parallel.pipeline"
        raise ConfigError.at(
            key, f"{virtual_stages} virtual stages for a model of {count} layers: each needs at least one"
        )
    if config.split == "automatic":
        return balanced(costs_of(shape), virtual_stages)
    listed = tuple(config.split)
    if len(listed) != virtual_stages:
        wanted = f"{virtual_stages} = parallel.pipeline x parallel.chunks"
        raise ConfigError.at("parallel.split", f"{len(listed)} numbers for {wanted} virtual stages")
    if min(listed) < 1 or sum(listed) != count:
        message = f"{sum(listed)} layers in all, none of them less than 1: the model has {count}"
        raise ConfigError.at("parallel.split", message)
    return listed


def ranges(split: Sequence[int]) -> list[range]:
    """Layers of each part."""
    return [range(end - count, end) for count, end in zip(split, accumulate(split), strict=True)]
