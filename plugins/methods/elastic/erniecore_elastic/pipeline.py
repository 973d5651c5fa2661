"""Which layers a pipeline skips in which micro-steps, so that skipping saves time: a layer that one stage skips while its
neighbors compute only makes it wait. Chunks of all stages that begin their backward pass in the same slot of the simulated
schedule, one forward and one backward pass long, form a group; a group is skipped together, and each of its stages skips as
many layers. No paddle.

ERNIE 5.0's open pre-training code skips by groups that begin their backward passes together. Our own reading is the slot (with
backward passes of twice the time no two stages begin one at the same moment), and what becomes of the first and the last layer,
which are never skipped: a group skips as many layers of each stage as every one of its chunks can spare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from erniecore_hybrid_parallel.schedules import schedule
from erniecore_hybrid_parallel.simulation import Simulated, Simulation

from erniecore_elastic.sampling import uniforms


class PipelineShape(NamedTuple):
    """Stages, chunks of each, and the number of layers of each of the stages x chunks virtual stages, in their order."""

    stages: int
    chunks: int
    split: tuple[int, ...]

    def layers(self, virtual_stage: int) -> range:
        """Places of the layers of a virtual stage."""
        start = sum(self.split[:virtual_stage])
        return range(start, start + self.split[virtual_stage])

    def spare(self, virtual_stage: int) -> tuple[int, ...]:
        """Those of them that may be skipped, the last ones first: all but the first and the last of the model."""
        last = sum(self.split) - 1
        return tuple(place for place in reversed(self.layers(virtual_stage)) if place not in (0, last))


class Group(NamedTuple):
    """(micro-batch, virtual stage) pairs, one of each stage, whose backward passes begin in one slot."""

    members: tuple[tuple[int, int], ...]


def simulated(shape: PipelineShape, micros: int, skipped: Mapping[int, frozenset[int]] | None = None) -> Simulated:
    """The schedule of a step on paper. A layer takes 1 forward and 2 backward, one that is skipped nothing.

    Args:
        skipped: micro-batch -> places of layers that it skips.
    """
    orders = [schedule(stage, shape.stages, shape.chunks, micros) for stage in range(shape.stages)]

    def left(micro: int, virtual_stage: int) -> float:
        gone = (skipped or {}).get(micro, frozenset())
        return sum(place not in gone for place in shape.layers(virtual_stage)) / shape.split[virtual_stage]

    forward = [float(count) for count in shape.split]
    return Simulation(
        orders, shape.chunks, micros, forward=forward, backward=[2 * cost for cost in forward], scale=left
    ).run()


def groups(shape: PipelineShape, micros: int) -> list[Group]:
    """The groups of a step of the whole model, in the order in which they begin; slots in which not all stages begin a backward
    pass, at both ends of a step, have none."""
    slot = 3.0 * max(shape.split)
    at: dict[int, list[tuple[int, int]]] = {}
    for (forward, micro, virtual_stage), start in simulated(shape, micros).starts.items():
        if not forward:
            at.setdefault(int(start // slot), []).append((micro, virtual_stage))
    everyone = list(range(shape.stages))
    members = [tuple(sorted(at[number])) for number in sorted(at)]
    return [Group(found) for found in members if sorted(stage % shape.stages for _, stage in found) == everyone]


def skipped_chunks(
    shape: PipelineShape, micros: int, retain: float, seed: int, *, whole: int = 0
) -> dict[int, frozenset[int]]:
    """Micro-step -> places of the layers that it skips: each group with the probability 1 - ``retain``.

    Args:
        whole: the first micro-steps, which skip nothing; a group with one of them is kept.
    """
    found: dict[int, set[int]] = {micro: set() for micro in range(micros)}
    for number, group in enumerate(groups(shape, micros)):
        (chance,) = uniforms(seed, number, "group", 1)
        if chance < retain or any(micro < whole for micro, _ in group.members):
            continue
        most = min(len(shape.spare(virtual_stage)) for _, virtual_stage in group.members)
        for micro, virtual_stage in group.members:
            found[micro].update(shape.spare(virtual_stage)[:most])
    return {micro: frozenset(places) for micro, places in found.items()}


def retained(shape: PipelineShape, skipped: Mapping[int, frozenset[int]]) -> Sequence[int]:
    """Layers that each stage still runs in a step, all micro-steps together."""
    return [
        sum(
            place not in places
            for places in skipped.values()
            for chunk in range(shape.chunks)
            for place in shape.layers(chunk * shape.stages + stage)
        )
        for stage in range(shape.stages)
    ]
