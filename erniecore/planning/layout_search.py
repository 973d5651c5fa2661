"""The best layouts of a job on a cluster: the fastest, the cheapest, the roomiest; and those that came close or were too
large, for an explanation. Exact over the layouts that ``layouts`` names: nothing that fits and is faster is missed.

For given degrees, what can be chosen (stage of sharding, recomputation, offload) is tried from the fastest on, and the first
that fits ends the trial: the others of these degrees are slower. Memory, the expensive part, is only computed until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from erniecore.planning.clusters import Cluster
from erniecore.planning.jobs import Job
from erniecore.planning.layout_memory import StageMemory, stage_memory
from erniecore.planning.layout_time import StepTime, cards_of_stage, stages, step_time
from erniecore.planning.layouts import Degrees, Options, degrees, options

#: how many layouts of each kind are kept beside the best
KEPT = 3


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to run a job.

    Attributes:
        cards: how many of the cluster's it uses. time: of a step. memory: of the fullest card.
        free: bytes that are left on the fullest card; below 0: it does not fit. price: of a step, in units of the
            cluster's price per hour.
    """

    degrees: Degrees
    options: Options
    cards: int
    time: StepTime
    memory: StageMemory
    free: int
    price: float

    @property
    def fits(self) -> bool:
        """Whether every card has room."""
        return self.free >= 0


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Attributes:
        fastest, cheapest, roomiest: None where nothing fits. The roomiest needs the fewest cards, and on them leaves most
            memory free.
        runners_up: the next fastest with other degrees. too_large: would be faster than the fastest, but do not fit; where
            nothing fits, those that lack least.
        tried: number of degrees that were looked at.
    """

    fastest: Layout | None
    cheapest: Layout | None
    roomiest: Layout | None
    runners_up: tuple[Layout, ...]
    too_large: tuple[Layout, ...]
    tried: int


def assess(job: Job, cluster: Cluster, chosen: Degrees, option: Options, *, accelerator: bool = True) -> Layout:
    """Memory, time and price of one layout; ``cluster`` has exactly its cards."""
    time = step_time(job, cluster, chosen, option)
    free, fullest = None, None
    for index, (first, end) in enumerate(stages(job, cluster, chosen, option.recompute)):
        card = cards_of_stage(cluster, chosen, index)
        memory = stage_memory(job, chosen, option, first, end, index=index, accelerator=accelerator)
        left = card.memory - memory.total
        if memory.host:
            left = min(left, card.host_memory // card.cards - memory.host)
        if free is None or left < free:
            free, fullest = left, memory
    assert free is not None
    assert fullest is not None
    return Layout(chosen, option, chosen.size, time, fullest, free, time.total / 3600 * cluster.price)


def every_layout(
    job: Job, cluster: Cluster, sizes: Iterable[int], *, accelerator: bool = True
) -> Iterator[tuple[Cluster, Degrees]]:
    """Degrees on the first n cards, for every n of ``sizes``."""
    for size in sizes:
        part = cluster.first(size)
        for chosen in degrees(
            job.shape, size, per_machine=part.per_machine, length=job.length, rows=job.rows, micro=job.micro
        ):
            yield part, chosen


def sizes_of(cluster: Cluster) -> list[int]:
    """Numbers of cards worth a look: parts of one machine, then whole machines."""
    first = cluster.machines[0].cards
    parts = [n for n in range(1, first) if first % n == 0]
    whole, at = [], 0
    for group in cluster.machines:
        whole += [at + group.cards * (i + 1) for i in range(group.count)]
        at += group.count * group.cards
    return [n for n in (*parts, *whole) if n <= cluster.size]


def search(
    job: Job,
    cluster: Cluster,
    sizes: Iterable[int] | None = None,
    *,
    accelerator: bool = True,
    may: Callable[[Degrees, Options], bool] = lambda chosen, option: True,
) -> Found:
    """The best layouts of ``job``.

    Args:
        sizes: numbers of cards to try; None: see :func:`sizes_of`. may: whether a strategy can run a layout; asked of those
            that would be shown.
    """
    fitting, large, tried = list[Layout](), list[Layout](), 0
    for part, chosen in every_layout(job, cluster, sizes_of(cluster) if sizes is None else sizes):
        tried += 1
        offload = all(group.host_memory for group in part.machines)
        timed = [
            (step_time(job, part, chosen, option).total, number, option)
            for number, option in enumerate(options(chosen, offload=offload))
        ]
        for _, _, option in sorted(timed, key=lambda row: row[:2]):
            last = assess(job, part, chosen, option, accelerator=accelerator)
            if not last.fits:
                large.append(last)
            elif may(chosen, option):
                fitting.append(last)
                break
    return _found(fitting, large, tried, may)


def first_fit(job: Job, cluster: Cluster, *, accelerator: bool = True) -> Layout | None:
    """Any layout on all cards that fits: what saves most memory is tried first; None where nothing does."""
    offload = all(group.host_memory for group in cluster.machines)
    for part, chosen in every_layout(job, cluster, [cluster.size]):
        for option in reversed(list(options(chosen, offload=offload))):
            layout = assess(job, part, chosen, option, accelerator=accelerator)
            if layout.fits:
                return layout
    return None


def _found(fitting: list[Layout], large: list[Layout], tried: int, may: Callable[[Degrees, Options], bool]) -> Found:
    fitting.sort(key=_speed)
    large.sort(key=lambda layout: -layout.free)
    possible = (layout for layout in large if may(layout.degrees, layout.options))
    if not fitting:
        return Found(None, None, None, (), tuple(_distinct(possible)), tried)
    fastest = fitting[0]
    faster = (layout for layout in possible if _speed(layout) < _speed(fastest))
    return Found(
        fastest=fastest,
        cheapest=min(fitting, key=lambda layout: (layout.price, *_speed(layout))),
        roomiest=min(fitting, key=lambda layout: (layout.cards, -layout.free, *_speed(layout))),
        runners_up=tuple(fitting[1 : 1 + KEPT]),
        too_large=tuple(_distinct(faster)),
        tried=tried,
    )


def _speed(layout: Layout) -> tuple[float, int, int]:
    """Order of layouts: the faster, of equals the one with fewer cards and then with more room."""
    return layout.time.total, layout.cards, -layout.free


def _distinct(layouts: Iterable[Layout]) -> Iterator[Layout]:
    """The first few, one per degrees."""
    seen = set[Degrees]()
    for layout in layouts:
        if len(seen) == KEPT:
            return
        if layout.degrees not in seen:
            seen.add(layout.degrees)
            yield layout
