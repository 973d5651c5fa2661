"""The layouts of a strategy that the rest of a run allows. What a method, a quantizer or a callback refuses is asked of checks
that every run makes, once for each axis, with two ranks along it alone. What they refuse only of two axes together is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from erniecore.api.planning import LayoutSpace, ParallelLayout

#: whether a run with these further settings would be accepted
Accepts: TypeAlias = Callable[[Sequence[str]], bool]
AXES = ("tensor", "pipeline", "context", "sharding", "expert")
STAGE_3, SEQUENCE = "sharding stage 3", "sequence"


class AllowedSpace(LayoutSpace):
    """``space`` without what the run refuses.

    Attributes:
        refused: axes, and choices of variants.
    """

    def __init__(self, space: LayoutSpace, accepts: Accepts) -> None:
        self.space, self.places = space, space.places
        self.refused = refused(space, accepts)

    def selected(self, processes: int) -> ParallelLayout:
        """See ``LayoutSpace``: the settings have passed the checks of a run."""
        return self.space.selected(processes)

    def layouts(self, processes: int) -> Iterable[ParallelLayout]:
        """Those without ranks along an axis that is refused."""
        axes = [axis for axis in AXES if axis in self.refused]
        return (found for found in self.space.layouts(processes) if all(getattr(found, axis) == 1 for axis in axes))

    def variants(self, layout: ParallelLayout) -> Iterable[ParallelLayout]:
        """Those without a choice that is refused."""
        return [found for found in self.space.variants(layout) if not {*_choices(found)} & {*self.refused}]

    def split(self, layout: ParallelLayout, speeds: Sequence[float] = ()) -> tuple[int, ...]:
        return self.space.split(layout, speeds)

    def overrides(self, layout: ParallelLayout) -> tuple[str, ...]:
        return self.space.overrides(layout)


def refused(space: LayoutSpace, accepts: Accepts) -> tuple[str, ...]:
    """Axes and choices that a run cannot have, of those that ``space`` has; nothing where it cannot have two ranks at all."""
    two = list(space.layouts(2))
    if not any(_accepted(space, accepts, layout) for layout in two if not _axes(layout)):
        return ()
    alone = {_axes(layout)[0]: layout for layout in two if len(_axes(layout)) == 1}
    found = [axis for axis in AXES if axis in alone and not _accepted(space, accepts, alone[axis])]
    for axis, choice in (("sharding", STAGE_3), ("tensor", SEQUENCE)):
        variants = list(space.variants(alone[axis])) if axis in alone and axis not in found else []
        sample = next((variant for variant in variants if _choices(variant) == [choice]), None)
        if sample is not None and not _accepted(space, accepts, sample):
            found.append(choice)
    return tuple(found)


def _axes(layout: ParallelLayout) -> list[str]:
    return [axis for axis in AXES if getattr(layout, axis) > 1]


def _choices(layout: ParallelLayout) -> list[str]:
    return [STAGE_3] * (layout.sharding_stage == 3) + [SEQUENCE] * layout.sequence


def _accepted(space: LayoutSpace, accepts: Accepts, layout: ParallelLayout) -> bool:
    return accepts([*space.overrides(layout), "train.accumulation=2"])
