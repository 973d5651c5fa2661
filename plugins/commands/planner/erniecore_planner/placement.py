"""Which rank sits at which place of a layout, chosen by what a step then takes: axes with much traffic get the fastest links, and
slow accelerators the places where they delay least (Ao et al., 2021, arXiv 2112.02752, call the first a mapping by
communication volume, the second a resource-aware partition).

The order of the cluster file is the first candidate, so no placement is slower than it. Small clusters are tried completely,
up to what is alike (accelerators of a machine, machines that are equal). In larger ones axes are nested in every order, on
machines in a few orders (as listed, by speed, by network, neighbors by rate), and the best is improved by exchanging two
machines, or two accelerators, as long as that helps and the budget lasts. The same input has the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import combinations, islice, permutations

import numpy as np

from erniecore.api.planning import LayoutSpace, ParallelLayout
from erniecore_planner.arrangements import MOST, arrangements, distinct
from erniecore_planner.clusters import Cluster
from erniecore_planner.jobs import Job
from erniecore_planner.layout_search import assess, speeds_of
from erniecore_planner.layout_time import StepTime, step_time
from erniecore_planner.layouts import Options
from erniecore_planner.links import Link, Links, Numbers, Rates, along, placed
from erniecore_planner.shares import shares_of

#: axes of the grid, innermost first, as places are counted
AXES = ("tensor", "context", "sharding", "data", "pipeline")
#: step times that are equal but for rounding
_SAME = 1 - 1e-9
#: accelerators up to which two of them are exchanged, and the places that are tried in total by size of the cluster
_SMALL, _BUDGETS = 64, ((64, 2000), (1024, 400), (1 << 62, 60))


class Placer:
    """Step times of one layout with its ranks at other places.

    Args:
        cluster: with exactly its accelerators. chosen: degrees and variants; its split and shares follow from the places.
    """

    def __init__(
        self, job: Job, space: LayoutSpace, cluster: Cluster, chosen: ParallelLayout, option: Options, links: Links
    ) -> None:
        self.job, self.space, self.cluster, self.option, self.links = job, space, cluster, option, links
        self.chosen = replace(chosen, order=(), ranks=())
        self.file_order: Numbers = np.arange(chosen.size)
        self._known: dict[object, tuple[StepTime, ParallelLayout, Cluster]] = {}

    @cached_property
    def kinds(self) -> Numbers:
        """A number for what each accelerator can do."""
        numbers: dict[object, int] = {}
        each = [(m.flops, m.memory, m.bandwidth, m.host_memory // m.accelerators) for m in self.links.machines]
        kinds = [numbers.setdefault(kind, len(numbers)) for kind in each]
        return np.array(kinds)[self.links.machine]

    def of(self, at: Numbers) -> tuple[StepTime, ParallelLayout, Cluster]:
        """Time, the layout with the split and shares for these places, and the cluster as they see it."""
        return self.by_links(at, along(self.links, self.chosen, at))

    def by_links(self, at: Numbers, found: dict[str, Link]) -> tuple[StepTime, ParallelLayout, Cluster]:
        """As :meth:`of`, where the links are known."""
        key = tuple(found.values()), self.signature(at).tobytes()
        if key not in self._known:
            cluster = placed(self.cluster, self.links, at, found)
            layout = self.chosen
            if not cluster.equally_fast:
                split = self.space.split(layout, speeds_of(cluster, layout))
                shares = shares_of(cluster, layout, self.job.rows // self.job.micro)
                layout = replace(layout, split=split, shares=shares)
            self._known[key] = step_time(self.job, cluster, layout, self.option), layout, cluster
        return self._known[key]

    def signature(self, at: Numbers) -> Numbers:
        """What of the kinds of accelerators matters: which lie at the places that work on the same rows and layers."""
        if not self.kinds.any():
            return np.zeros([*at.shape[:-1], 0], np.int64)
        cell = self.chosen.tensor * self.chosen.context
        return np.sort(self.kinds[at].reshape(*at.shape[:-1], -1, cell), axis=-1)

    def fits(self, at: Numbers, on_accelerator: bool) -> bool:
        """Whether every accelerator has room for what is at its place."""
        if not self.kinds.any():
            return True
        time, layout, cluster = self.of(at)
        return assess(self.job, cluster, layout, self.option, on_accelerator=on_accelerator, time=time).fits

    def seconds(self, at: Numbers) -> float:
        """Seconds of a step with ranks at these places."""
        return self.of(at)[0].total

    def better(
        self, candidates: Iterable[Numbers], now: tuple[Numbers, float], *, on_accelerator: bool
    ) -> tuple[Numbers, float]:
        """The fastest of the candidates that fits, and its seconds; ``now`` where none is faster."""
        for at in candidates:
            seconds = self.seconds(at)
            if seconds < now[1] * _SAME and self.fits(at, on_accelerator):
                now = at, seconds
        return now


def best_places(placer: Placer, *, on_accelerator: bool = True, exact: bool | None = None) -> Numbers:
    """The accelerator of each place in the fastest placement that fits.

    Args:
        exact: try everything that differs; None: where that is at most ``MOST`` placements.
    """
    best = placer.file_order, placer.seconds(placer.file_order)
    if placer.links.uniform:
        return best[0]
    better = partial(placer.better, on_accelerator=on_accelerator)
    orders = list(axis_orders(placer.chosen))
    every = None if exact is False else arrangements(placer.links, MOST)
    if exact and every is None:
        raise ValueError(f"more than {MOST} placements")
    if every is not None:
        best = better((nested(placer.chosen, order, placer.file_order) for order in orders), best)
        return better(distinct(placer.links, placer.chosen, every, placer.signature(every)), best)[0]
    budget = next(tries for size, tries in _BUDGETS if placer.chosen.size <= size)
    machines = list(machine_orders(placer.links))[: max(1, budget // len(orders))]
    lists = [accelerators_of(placer.links, machine_order) for machine_order in machines]
    for ranks in lists:
        best = better((nested(placer.chosen, order, ranks) for order in orders), best)
    return _improved(placer, *best, max(0, budget - len(lists) * len(orders)), better)


def _improved(
    placer: Placer, at: Numbers, seconds: float, budget: int, better: Callable[..., tuple[Numbers, float]]
) -> Numbers:
    """After exchanges of two accelerators, or of two machines of equal size, as long as one helps."""
    pairs = list(islice(_exchanges(placer.links), budget))
    while budget > 0 and pairs:
        found = better((_exchanged(at, *pair) for pair in pairs[:budget]), (at, seconds))
        budget -= len(pairs[:budget])
        if found[1] == seconds:
            break
        at, seconds = found
    return at


def _exchanges(links: Links) -> Iterator[tuple[Numbers, Numbers]]:
    """Two sets of accelerators that can take each other's places, and are not alike."""
    sizes = [group.accelerators for group in links.machines]
    differ = links.cluster.links or len(links.cluster.machines) > 1
    for one, other in combinations(range(len(sizes)), 2) if differ else ():
        if sizes[one] == sizes[other] and (links.cluster.links or links.machines[one] != links.machines[other]):
            yield tuple(links.first[m] + np.arange(sizes[m]) for m in (one, other))
    if links.size <= _SMALL:
        for a, b in combinations(range(links.size), 2):
            if links.machine[a] != links.machine[b] or links.machines[links.machine[a]].links:
                yield np.array([a]), np.array([b])


def _exchanged(at: Numbers, one: Numbers, other: Numbers) -> Numbers:
    swap = np.arange(len(at))
    swap[one], swap[other] = other, one
    return swap[at]


def axis_orders(layout: ParallelLayout) -> Iterator[tuple[str, ...]]:
    """Nestings of the axes that have several ranks, the usual one first. Ranks that share rows' states stay in the order in which
    rows are counted: ``sharding`` within ``data``."""
    used = [axis for axis in AXES if getattr(layout, axis) > 1]
    for order in permutations(used):
        if not {"sharding", "data"} <= {*order} or order.index("sharding") < order.index("data"):
            yield order


def nested(layout: ParallelLayout, order: Sequence[str], ranks: Numbers) -> Numbers:
    """The accelerator of each place where ``ranks`` are counted along the axes of ``order``, the first one fastest."""
    full = [*order, *(axis for axis in AXES if axis not in order)]
    numbers = np.arange(layout.size).reshape([getattr(layout, axis) for axis in reversed(full)])
    axes = [len(full) - 1 - full.index(axis) for axis in reversed(AXES)]
    found: Numbers = ranks[numbers.transpose(axes).reshape(-1)]
    return found


def place_of(layout: ParallelLayout, rank: int) -> int:
    """The number of a rank's place; places count ``tensor`` fastest, then as ``AXES``."""
    ranks = np.array(layout.ranks) if layout.ranks else np.arange(layout.size)
    return int(np.flatnonzero(nested(layout, layout.order or AXES, ranks) == rank)[0])


def machine_orders(links: Links) -> Iterator[list[int]]:
    """Orders of the machines that are worth a try: as listed; where they differ, by speed, by network; neighbors by rate, from
    each end of the fastest link."""
    number, found = len(links.machines), []
    found.append(list(range(number)))
    flops = [group.flops for group in links.machines]
    own = [group.network or links.cluster.network for group in links.machines]
    for value in (flops, own, [-rate for rate in own], [-rate for rate in flops]):
        found.append(sorted(range(number), key=lambda m: (-value[m], m)))
    if links.cluster.links:
        every = np.arange(number)
        rates = links.network(every[:, None], every[None, :]).copy()
        np.fill_diagonal(rates, -1.0)
        starts = sorted(range(number), key=lambda m: (-rates[m].max(), m))[:8]
        found += [_chain(rates, start) for start in starts]
    seen = set[tuple[int, ...]]()
    for order in found:
        if tuple(order) not in seen:
            seen.add(tuple(order))
            yield order


def _chain(rates: Rates, start: int) -> list[int]:
    """From ``start``, always the machine that is joined best with the last ones; of equals the first."""
    order, left = [start], sorted({*range(len(rates))} - {start})
    while left:
        nearest = max(left, key=lambda m: (tuple(float(rates[m, last]) for last in reversed(order[-3:])), -m))
        order.append(nearest)
        left.remove(nearest)
    return order


def accelerators_of(links: Links, machines: Sequence[int]) -> Numbers:
    """Of machines in this order."""
    return np.concatenate([links.first[m] + np.arange(links.machines[m].accelerators) for m in machines])
