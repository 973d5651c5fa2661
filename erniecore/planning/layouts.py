"""Ways to lay a model out over cards: degrees of the axes of ``hybrid`` and what else is chosen, which of them a model
allows, and how layers are dealt to pipeline stages. Pure data; what a layout costs is in ``layout_memory`` and ``layout_time``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from erniecore.types.shape import DecoderShape

#: tokens of a row from which sharing its positions among ranks is considered
LONG_ROW = 8192


@dataclass(frozen=True, slots=True)
class Degrees:
    """Ranks along each axis, innermost first, as ``parallel.*`` names them; ``expert``: of those that see different rows."""

    tensor: int = 1
    context: int = 1
    sharding: int = 1
    data: int = 1
    pipeline: int = 1
    expert: int = 1

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.tensor * self.context * self.sharding * self.data * self.pipeline

    @property
    def rows(self) -> int:
        """Ranks that see different rows."""
        return self.sharding * self.data

    def span(self, axis: str) -> int:
        """Neighbouring ranks among which a group along ``axis`` lies: its distance in the order of ranks."""
        inner = {"tensor": 1, "context": self.tensor, "sharding": self.tensor * self.context}
        inner |= {"expert": self.tensor * self.context, "rows": self.tensor * self.context}
        degree = self.rows if axis == "rows" else getattr(self, axis)
        return int(inner[axis] * degree)


@dataclass(frozen=True, slots=True)
class Options:
    """What can be chosen for any degrees: ``stage`` of sharding, ``train.recompute``, optimizer state in the host's
    memory, and ``sequence``: tensor ranks share the stream between matrices too."""

    stage: int = 1
    recompute: str = "none"
    offload: bool = False
    sequence: bool = False


def divisors(number: int) -> list[int]:
    """In rising order."""
    return [d for d in range(1, number + 1) if number % d == 0]


def tensor_degrees(shape: DecoderShape, most: int) -> list[int]:
    """Numbers of ranks that every matrix of the model can be cut into, up to ``most``."""
    layers = (*shape.layers, *shape.ahead)
    widths = [shape.vocab, *(w for layer in layers for w in (layer.heads, layer.kv_heads, layer.mlp) if w)]
    return [d for d in range(1, most + 1) if all(width % d == 0 for width in widths)]


def degrees(
    shape: DecoderShape, cards: int, *, per_machine: int, length: int, rows: int, micro: int
) -> Iterator[Degrees]:
    """All degrees that use ``cards`` cards and that the model allows, no tensor group across machines.

    Args:
        length: of a row. rows: of a step. micro: rows of a micro-batch: a step is whole micro-batches on every rank.
    """
    experts = max((layer.experts for layer in shape.layers), default=0)
    for tensor in tensor_degrees(shape, min(cards, per_machine)):
        for pipeline in divisors(cards // tensor) if cards % tensor == 0 else ():
            if pipeline > len(shape.layers):
                continue
            left = cards // tensor // pipeline
            for context in divisors(left):
                if context > 1 and (length < LONG_ROW or length % (2 * context)):
                    continue
                data_ranks = left // context
                if rows % (data_ranks * micro):
                    continue
                for sharding in divisors(data_ranks):
                    for expert in divisors(data_ranks) if experts else (1,):
                        if experts and experts % (expert * tensor):
                            continue
                        yield Degrees(tensor, context, sharding, data_ranks // sharding, pipeline, expert)


def options(chosen: Degrees, *, offload: bool) -> Iterator[Options]:
    """Everything that may be chosen for some degrees."""
    for stage in (1, 2, 3) if chosen.sharding > 1 else (1,):
        for recompute in ("none", "attention", "full"):
            for away in (False, True) if offload else (False,):
                for sequence in (False, True) if chosen.tensor > 1 else (False,):
                    yield Options(stage, recompute, away, sequence)


@lru_cache(maxsize=4096)
def deal(costs: tuple[float, ...], speeds: tuple[float, ...]) -> tuple[int, ...]:
    """Deal layers to stages in order so that the slowest stage is as fast as possible; ends of the stages.

    Exact, by dynamic programming over (stage, layers so far). Every stage gets a layer.

    Args:
        costs: of the layers, work. speeds: of the stages, work per second.
    """
    layers, stages = len(costs), len(speeds)
    assert stages <= layers
    before = [0.0]
    for cost in costs:
        before.append(before[-1] + cost)
    best: list[list[tuple[float, int]]] = [[(0.0, 0)] + [(float("inf"), 0)] * layers]
    for stage in range(1, stages + 1):
        row = [(float("inf"), 0)] * (layers + 1)
        for end in range(stage, layers - (stages - stage) + 1):
            found = (
                (max(best[-1][start][0], (before[end] - before[start]) / speeds[stage - 1]), start)
                for start in range(stage - 1, end)
            )
            row[end] = min(found)
        best.append(row)
    ends, end = list[int](), layers
    for stage in range(stages, 0, -1):
        ends.append(end)
        end = best[stage][end][1]
    return tuple(reversed(ends))


def stages_of(ends: Sequence[int]) -> list[tuple[int, int]]:
    """(first layer, end) of each stage."""
    return list(zip((0, *ends[:-1]), ends, strict=True))
