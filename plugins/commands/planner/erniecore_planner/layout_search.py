"""The best layouts of a job on a cluster: the fastest, the cheapest, the one that needs least memory; and those that came close
or were too large, for an explanation. Exact over the layouts that a strategy publishes: nothing that fits and is faster is
missed.

For given degrees, what can be chosen (stage of sharding, recomputation, offload) is tried from the fastest on, and the first
that fits ends the trial: the others of these degrees are slower. Memory, the expensive part, is only computed until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from erniecore.api.planning import LayoutSpace, ParallelLayout
from erniecore_planner.clusters import Cluster
from erniecore_planner.jobs import Job
from erniecore_planner.layout_memory import StageMemory, stage_memory
from erniecore_planner.layout_time import StepTime, accelerators_of_stage, stages, step_time
from erniecore_planner.layouts import Options, choices, worth_trying
from erniecore_planner.shares import shares_of

#: how many layouts of each kind are kept beside the best
KEPT = 3


@dataclass(frozen=True, slots=True)
class Assessed:
    """One way to run a job, and what it takes.

    Attributes:
        layout: of the ranks, with its pipeline's split. options: what else is chosen.
        accelerators: how many of the cluster's it uses. time: of a step. memory: of the fullest accelerator.
        free: bytes that are left on the fullest accelerator; below 0: it does not fit. price: of a step, in units of the
            cluster's price per hour.
    """

    layout: ParallelLayout
    options: Options
    accelerators: int
    time: StepTime
    memory: StageMemory
    free: int
    price: float

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
    job: Job, cluster: Cluster, chosen: ParallelLayout, option: Options, *, on_accelerator: bool = True
) -> Assessed:
    """Memory, time and price of one layout; ``cluster`` has exactly its accelerators."""
    time = step_time(job, cluster, chosen, option)
    free, fullest = None, None
    for index, (first, end) in enumerate(stages(job, chosen)):
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
) -> Found:
    """The best layouts of ``job``.

    Args:
        space: what a strategy can run. sizes: numbers of accelerators to try; None: see :func:`sizes_of`.
        uneven: see :func:`every_layout`.
    """
    fitting, large, tried = list[Assessed](), list[Assessed](), 0
    for part, chosen in every_layout(job, space, cluster, sizes_of(cluster) if sizes is None else sizes, uneven=uneven):
        tried += 1
        offload = all(group.host_memory for group in part.machines)
        timed = [
            (step_time(job, part, variant, option).total, number, variant, option)
            for number, (variant, option) in enumerate(choices(space, chosen, offload=offload))
        ]
        for _, _, variant, option in sorted(timed, key=lambda row: row[:2]):
            last = assess(job, part, variant, option, on_accelerator=on_accelerator)
            if last.fits:
                fitting.append(last)
                break
            large.append(last)
    return _found(fitting, large, tried)


def first_fit(job: Job, space: LayoutSpace, cluster: Cluster, *, on_accelerator: bool = True) -> Assessed | None:
    """Any layout on all accelerators that fits: what saves most memory is tried first; None where nothing does."""
    offload = all(group.host_memory for group in cluster.machines)
    for part, chosen in every_layout(job, space, cluster, [cluster.size]):
        for variant, option in reversed(list(choices(space, chosen, offload=offload))):
            layout = assess(job, part, variant, option, on_accelerator=on_accelerator)
            if layout.fits:
                return layout
    return None


def _found(fitting: list[Assessed], large: list[Assessed], tried: int) -> Found:
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
        runners_up=tuple(fitting[1 : 1 + KEPT]),
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
