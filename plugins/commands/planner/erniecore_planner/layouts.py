"""What the planner knows of layouts beside what a strategy publishes: which are worth a look, what can be chosen for any of them,
and how ranks lie in machines. What a layout costs is in ``layout_memory`` and ``layout_time``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from erniecore.api.planning import LayoutSpace, ParallelLayout

#: tokens of a row from which context parallelism is considered
LONG_ROW = 8192


@dataclass(frozen=True, slots=True)
class Options:
    """What can be chosen for any layout: ``train.recompute``, and optimizer state in the host's memory."""

    recompute: str = "none"
    offload: bool = False


def span(layout: ParallelLayout, axis: str) -> int:
    """Neighboring ranks among which a group along ``axis`` (or ``data_size``) lies: its distance in the order of ranks."""
    if axis == "pipeline":
        return layout.size
    inner = {"tensor": 1, "context": layout.tensor}
    return int(inner.get(axis, layout.tensor * layout.context) * getattr(layout, axis))


def worth_trying(
    space: LayoutSpace,
    processes: int,
    *,
    per_machine: int,
    length: int,
    rows: int,
    micro: int,
    uneven: bool = False,
) -> Iterator[ParallelLayout]:
    """The layouts of a strategy that fit a job and its machines: no tensor group across machines, context parallelism for long
    rows alone, and the same number of whole micro-batches on every rank.

    Args:
        length: of a row. rows: of a step. micro: rows of a micro-batch. uneven: ranks may have different numbers of
            micro-batches, at least one each.
    """
    for layout in space.layouts(processes):
        context = layout.context
        fits = rows >= layout.data_size * micro if uneven else rows % (layout.data_size * micro) == 0
        if layout.tensor > per_machine or not fits:
            continue
        if context > 1 and (length < LONG_ROW or length % (2 * context)):
            continue
        yield layout


def choices(space: LayoutSpace, layout: ParallelLayout, *, offload: bool) -> Iterator[tuple[ParallelLayout, Options]]:
    """Everything that may be chosen for the degrees of a layout."""
    variants = list(space.variants(layout))
    for stage in sorted({variant.sharding_stage for variant in variants}):
        for recompute in ("none", "attention", "full"):
            for away in (False, True) if offload else (False,):
                for variant in (variant for variant in variants if variant.sharding_stage == stage):
                    yield variant, Options(recompute, away)
