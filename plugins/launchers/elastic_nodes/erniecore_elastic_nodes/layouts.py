"""The layout of a run for the ranks that are there. The sequences of a step stay: micro-batches are shared evenly where that
is possible, and else unevenly, which weighs no token differently. No paddle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from erniecore.api import ConfigError
from erniecore.api.planning import LayoutSpace, ParallelLayout, PlannedRun


@dataclass(frozen=True)
class Chosen:
    """A layout, and the settings (``section.key=value``) that give it to a run."""

    layout: ParallelLayout
    overrides: tuple[str, ...]

    @property
    def text(self) -> str:
        """For people: the degrees above 1, and uneven shares."""
        degrees = [f"{axis} {degree}" for axis, degree in self.layout.degrees.items() if degree > 1] or ["one process"]
        shares = [f"micro-batches {'+'.join(map(str, self.layout.shares))}"] if self.layout.shares else []
        return ", ".join(degrees + shares)


class Layouts:
    """Layouts of one run for any number of ranks.

    Args:
        run: as its settings describe it, on the number of ranks that they are written for.
        cluster: a cluster file for ``planned``.
        accepts: for ``planned``, whether two ranks of the run would be accepted with further settings.

    Attributes:
        micro_batches: of a step, on all ranks together; the same in every layout.
    """

    def __init__(
        self,
        run: PlannedRun,
        planned: bool = False,
        cluster: Path | None = None,
        accepts: Callable[[Sequence[str]], bool] = lambda settings: True,
    ) -> None:
        if run.layouts is None:
            raise ConfigError.at("parallel.name", "this strategy does not say which layouts it can run: take `hybrid`")
        self._run, self._space, self._planned, self._cluster = run, run.layouts, planned, cluster
        accepted = cache(accepts)  # every search asks the same
        self._accepts = lambda strategy, settings: accepted(tuple(settings))
        self.micro_batches = sum(run.layout.shares) or run.train.accumulation * run.layout.data_size

    def of(self, ranks: int, note: Callable[[str], None] = lambda text: None) -> Chosen:
        """For as many of ``ranks`` as can take part. Raises ``ConfigError`` if not even one can."""
        for count in range(ranks, 0, -1):
            planned = self._planned and planned_layout(
                self._run, count, self.micro_batches, self._cluster, note, accepts=self._accepts
            )
            layout = planned or self._same(count)
            if layout is not None:
                if count < ranks:
                    note(f"note: no layout of this run uses {ranks} ranks: {ranks - count} of them wait")
                return self._chosen(layout)
        raise ConfigError.at("parallel", f"no layout of this run uses {ranks} ranks or fewer")

    def _chosen(self, layout: ParallelLayout) -> Chosen:
        shares = layout.shares or shared(self.micro_batches, layout.data_size)
        even = len(set(shares)) == 1
        layout = replace(layout, shares=() if even else shares)
        return Chosen(layout, (*self._space.overrides(layout), f"train.accumulation={max(shares)}"))

    def _same(self, ranks: int) -> ParallelLayout | None:
        """The layout of the settings with another number of data-parallel ranks. Of ``sharding`` as much as before where that
        divides them, else the largest divisor below; experts likewise."""
        own = self._run.layout
        fixed = own.tensor * own.context * own.pipeline
        if ranks % fixed or ranks // fixed > self.micro_batches:
            return None
        size = ranks // fixed
        most = own.sharding if own.data > 1 else size if own.sharding > 1 else 1
        for sharding in (d for d in range(min(most, size), 0, -1) if size % d == 0):
            for expert in (d for d in range(min(own.expert, size), 0, -1) if size % d == 0):
                stage = own.sharding_stage if sharding > 1 else 1
                found = replace(
                    own, sharding=sharding, data=size // sharding, expert=expert, sharding_stage=stage, shares=()
                )
                if runs(self._space, found):
                    order, listed = places(own, found)
                    return replace(found, order=order, ranks=listed)
        return None


def places(own: ParallelLayout, found: ParallelLayout) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """``order`` and ``ranks`` of ``own`` as far as they mean something for other ranks: the order if it has all axes, the ranks
    if there are as many."""
    used = {axis for axis, degree in found.degrees.items() if degree > 1 and axis != "expert"}
    return own.order if used <= {*own.order} else (), own.ranks if found.size == own.size else ()


def runs(space: LayoutSpace, layout: ParallelLayout) -> bool:
    """Whether the strategy can run these degrees of the model."""
    degrees = layout.degrees
    return any(found.degrees == degrees for found in space.layouts(layout.size))


def shared(micro_batches: int, ranks: int) -> tuple[int, ...]:
    """Micro-batches of each rank, as even as possible; the first ones have one more."""
    each, more = divmod(micro_batches, ranks)
    return tuple(each + (rank < more) for rank in range(ranks))


def planned_layout(
    run: PlannedRun,
    ranks: int,
    micro_batches: int,
    cluster: Path | None,
    note: Callable[[str], None],
    environ: Mapping[str, str] | None = None,
    accepts: Callable[[str, Sequence[str]], bool] = lambda strategy, settings: True,
) -> ParallelLayout | None:
    """The fastest layout that fits and that the run accepts, as ``ernie plan`` finds it; None where it knows nothing, which is
    noted."""
    from erniecore_planner.layout_plan import Wanted, layout_plan

    from erniecore.api import UsageError

    wanted, rows = Wanted(ranks, "", cluster), run.train.batch_size * micro_batches
    try:
        plan = layout_plan(run, wanted, os.environ if environ is None else environ, rows=rows, accepts=accepts)
    except UsageError as error:
        note(f"note: no planned layout for {ranks} ranks ({error}); taking the one of the settings")
        return None
    return plan.found.fastest.layout if plan is not None and plan.found.fastest is not None else None
