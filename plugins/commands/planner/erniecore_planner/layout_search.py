"""The best layouts of a job on a cluster: the fastest, the cheapest, the one that needs least memory; and those that came close
or were too large, for an explanation. Exact over the layouts that a strategy publishes: nothing that fits and is faster is
missed.

For given degrees, what can be chosen (stage of sharding, recomputation, offload) is tried from the fastest on, and the first
that fits ends the trial: the others of these degrees are slower. Memory, the expensive part, is only computed until then.
Degrees are tried from the lowest bound of their time on (``layout_bounds``), and those whose bound is above everything that is
kept are not tried at all (branch and bound): of the 10,000 degrees of 16,384 accelerators some hundreds are.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from erniecore.api.planning import LayoutSpace, ParallelLayout
from erniecore_planner.clusters import Cluster
from erniecore_planner.jobs import Job
from erniecore_planner.layout_bounds import least_time
from erniecore_planner.layout_memory import StageMemory, stage_memory
from erniecore_planner.layout_time import StepTime, accelerators_of_stage, distinct_stages, step_time
from erniecore_planner.layouts import Options, choices, worth_trying
from erniecore_planner.shares import shares_of

if TYPE_CHECKING:
    from erniecore_planner.traffic import Placement

#: how many layouts of each kind are kept beside the best
KEPT = 3


@dataclass(frozen=True, slots=True)
class Assessed:
    """One way to run a job, and what it takes.

    Attributes:
        layout: of the ranks, with its pipeline's split. options: what else is chosen.
        accelerators: how many of the cluster's it uses. time: of a step. memory: of the fullest accelerator.
        free: bytes that are left on the fullest accelerator; below 0: it does not fit. price: of a step, in units of the
            cluster's price per hour. placement: of its ranks, where their places were chosen.
    """

    layout: ParallelLayout
    options: Options
    accelerators: int
    time: StepTime
    memory: StageMemory
    free: int
    price: float
    placement: Placement | None = None

    @property
    def fits(self) -> bool:
        """Whether every accelerator has room."""
        return self.free >= 0


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Attributes:
        fastest, cheapest, lowest_memory: None where nothing fits. The last one needs the fewest accelerators, and on them
            leaves most memory free.
        runners_up: the next fastest with other degrees. too_large: would be faster than the fastest, but do not fit; where
            nothing fits, those that lack least.
        tried: number of degrees that were looked at.
    """

    fastest: Assessed | None
    cheapest: Assessed | None
    lowest_memory: Assessed | None
    runners_up: tuple[Assessed, ...]
    too_large: tuple[Assessed, ...]
    tried: int


def assess(
    job: Job,
    cluster: Cluster,
    chosen: ParallelLayout,
    option: Options,
    *,
    on_accelerator: bool = True,
    time: StepTime | None = None,
) -> Assessed:
    """Memory, time and price of one layout; ``cluster`` has exactly its accelerators. ``time``: where it is known."""
    time = time or step_time(job, cluster, chosen, option)
    free, fullest = None, None
    for index, (first, end) in distinct_stages(job, cluster, chosen):  # of equal ones the first has most in flight
        accelerator = accelerators_of_stage(cluster, chosen, index)
        memory = stage_memory(job, chosen, option, first, end, index=index, on_accelerator=on_accelerator)
        left = accelerator.memory - memory.total
        if memory.host:
            left = min(left, accelerator.host_memory // accelerator.accelerators - memory.host)
        if free is None or left < free:
            free, fullest = left, memory
    assert free is not None
    assert fullest is not None
    return Assessed(chosen, option, chosen.size, time, fullest, free, time.total / 3600 * cluster.price)


def every_layout(
    job: Job, space: LayoutSpace, cluster: Cluster, sizes: Iterable[int], *, uneven: bool = False
) -> Iterator[tuple[Cluster, ParallelLayout]]:
    """Layouts on the first n accelerators, for every n of ``sizes``, with the splits and shares that runs of them have.
    ``uneven``: also where equal accelerators cannot have equally many micro-batches."""
    for size in sizes:
        part = cluster.first(size)
        for chosen in worth_trying(
            space,
            size,
            per_machine=part.per_machine,
            length=job.length,
            rows=job.rows,
            micro=job.micro,
            uneven=uneven or not part.equally_fast,
        ):
            split = space.split(chosen, speeds_of(part, chosen))
            yield part, replace(chosen, split=split, shares=shares_of(part, chosen, job.rows // job.micro))


def speeds_of(cluster: Cluster, chosen: ParallelLayout) -> tuple[float, ...]:
    """Of the stages, relative to the fastest; empty where all are as fast."""
    found = [accelerators_of_stage(cluster, chosen, index).flops for index in range(chosen.pipeline)]
    return () if len(set(found)) == 1 else tuple(flops / max(found) for flops in found)


def sizes_of(cluster: Cluster) -> list[int]:
    """Numbers of accelerators worth a look: parts of one machine, then whole machines."""
    first = cluster.machines[0].accelerators
    parts = [n for n in range(1, first) if first % n == 0]
    whole, at = [], 0
    for group in cluster.machines:
        whole += [at + group.accelerators * (i + 1) for i in range(group.count)]
        at += group.count * group.accelerators
    return [n for n in (*parts, *whole) if n <= cluster.size]


def search(
    job: Job,
    space: LayoutSpace,
    cluster: Cluster,
    sizes: Iterable[int] | None = None,
    *,
    on_accelerator: bool = True,
    uneven: bool = False,
    kept: int = KEPT,
) -> Found:
    """The best layouts of ``job``.

    Args:
        space: what a strategy can run. sizes: numbers of accelerators to try; None: see :func:`sizes_of`.
        uneven: see :func:`every_layout`. kept: how many of ``runners_up`` there are at most.
    """
    fitting, large, tried, record = list[tuple[int, Assessed]](), list[Assessed](), 0, _Record(kept)
    for size in sorted(sizes_of(cluster) if sizes is None else sizes):
        found = [
            (least_time(job, part, chosen), tried + number, part, chosen)
            for number, (part, chosen) in enumerate(every_layout(job, space, cluster, [size], uneven=uneven))
        ]
        tried += len(found)
        all_of_them = not fitting  # of the fewest accelerators that do, the layout that needs least memory is wanted
        for bound, number, part, chosen in sorted(found, key=lambda row: row[:2]):
            limit = inf if all_of_them else record.limit(part.price)
            if bound > limit:
                break
            for last in assess_choices(job, space, part, chosen, on_accelerator=on_accelerator, limit=limit):
                if last.fits:
                    fitting.append((number, last))
                    record.note(last)
                else:
                    large.append(last)
    return best_of([layout for _, layout in sorted(fitting, key=lambda row: row[0])], large, tried, kept)


class _Record:
    """What a layout has to beat: the times of the fastest ones, and the lowest price of a step."""

    def __init__(self, kept: int) -> None:
        self._times, self._price = [inf] * (1 + kept), inf

    def note(self, layout: Assessed) -> None:
        """Another one that fits."""
        insort(self._times, layout.time.total)
        self._times.pop()
        self._price = min(self._price, layout.price)

    def limit(self, price: float) -> float:
        """Seconds of a step above which a layout on accelerators of this price per hour is neither among the fastest nor the
        cheapest."""
        return max(self._times[-1], 3600 * self._price / price)


def assess_choices(
    job: Job,
    space: LayoutSpace,
    part: Cluster,
    chosen: ParallelLayout,
    *,
    on_accelerator: bool = True,
    limit: float = inf,
) -> Iterator[Assessed]:
    """What can be chosen for the degrees of a layout, from the fastest on to the first that fits, or to one that takes more
    than ``limit`` seconds."""
    offload = all(group.host_memory for group in part.machines)
    times, timed = dict[tuple[int, Options], StepTime](), []
    for number, (variant, option) in enumerate(choices(space, chosen, offload=offload)):
        key = variant.sharding_stage, option  # ``sequence`` saves memory, and costs no time
        times[key] = times.get(key) or step_time(job, part, variant, option)
        timed.append((times[key].total, number, variant, option, times[key]))
    for total, _, variant, option, time in sorted(timed, key=lambda row: row[:2]):
        if total > limit:
            return
        found = assess(job, part, variant, option, on_accelerator=on_accelerator, time=time)
        yield found
        if found.fits:
            return


def first_fit(job: Job, space: LayoutSpace, cluster: Cluster, *, on_accelerator: bool = True) -> Assessed | None:
    """Any layout on all accelerators that fits: what saves most memory is tried first; None where nothing does."""
    offload = all(group.host_memory for group in cluster.machines)
    for part, chosen in every_layout(job, space, cluster, [cluster.size]):
        for variant, option in reversed(list(choices(space, chosen, offload=offload))):
            layout = assess(job, part, variant, option, on_accelerator=on_accelerator)
            if layout.fits:
                return layout
    return None


def best_of(fitting: list[Assessed], large: list[Assessed], tried: int, kept: int = KEPT) -> Found:
    """Those that are told, of all that were assessed. ``large``: what does not fit. ``kept``: number of runners-up."""
    fitting.sort(key=_speed)
    large.sort(key=lambda layout: -layout.free)
    if not fitting:
        return Found(None, None, None, (), tuple(_distinct(large)), tried)
    fastest = fitting[0]
    faster = (layout for layout in large if _speed(layout) < _speed(fastest))
    return Found(
        fastest=fastest,
        cheapest=min(fitting, key=lambda layout: (layout.price, *_speed(layout))),
        lowest_memory=min(fitting, key=lambda layout: (layout.accelerators, -layout.free, *_speed(layout))),
        runners_up=tuple(fitting[1 : 1 + kept]),
        too_large=tuple(_distinct(faster)),
        tried=tried,
    )


def _speed(layout: Assessed) -> tuple[float, int, int]:
    """Order of layouts: the faster, of equals the one with fewer accelerators and then with more room."""
    return layout.time.total, layout.accelerators, -layout.free


def _distinct(layouts: Iterable[Assessed]) -> Iterator[Assessed]:
    """The first few, one per degrees."""
    seen = set[tuple[int, ...]]()
    for layout in layouts:
        if len(seen) == KEPT:
            return
        degrees = tuple(layout.layout.degrees.values())
        if degrees not in seen:
            seen.add(degrees)
            yield layout
