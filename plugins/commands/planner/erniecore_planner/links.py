"""The links between the accelerators of a cluster, and which of them the groups of a layout use when its ranks have certain
places. Arrays and pure functions; what a message takes is in ``layout_time``.

A group's link is the slowest between any two of its members, whatever the order in which a collective passes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from erniecore.api.planning import ParallelLayout
from erniecore_planner.clusters import LATENCY_FAR, Cluster, Machines, Matrix

Numbers = NDArray[np.int64]
Rates = NDArray[np.float64]
#: (seconds per message, bytes per second)
Link = tuple[float, float]
#: pairs of accelerators up to which each is looked at; beyond it, pairs of machines
_PAIRS = 200_000
#: a link that nobody uses
IDLE: Link = (0.0, float("inf"))


class Links:
    """Of all accelerators of a cluster, numbered in its order.

    Attributes:
        machine: the machine of each accelerator, by number. machines: what each is like. first: number of its first one.
        arranged: see ``arrangements``, which keeps them here.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.machines: list[Machines] = [group for group in cluster.machines for _ in range(group.count)]
        sizes = np.array([group.accelerators for group in self.machines])
        self.machine: Numbers = np.repeat(np.arange(len(sizes)), sizes)
        self.first: Numbers = np.cumsum(sizes) - sizes
        self._own = np.array([group.network or cluster.network for group in self.machines], dtype=np.float64)
        self._within = np.array([group.link for group in self.machines], dtype=np.float64)
        self._latency = np.array([group.latency for group in self.machines])
        self.arranged: Numbers | None = None

    @property
    def size(self) -> int:
        """Number of accelerators of all machines together."""
        return len(self.machine)

    @cached_property
    def uniform(self) -> bool:
        """Whether any two accelerators may change places: all links are the same."""
        return len(self.machines) == 1 and not self.machines[0].links

    def network(self, one: Numbers, other: Numbers) -> Rates:
        """Bytes per second and accelerator between machines."""
        if self.cluster.links:
            return self._matrix[one, other]
        return np.minimum(self._own[one], self._own[other])

    @cached_property
    def _matrix(self) -> Rates:
        return np.array(self.cluster.links, dtype=np.float64)

    @cached_property
    def _matrices(self) -> Rates:
        """Bytes per second within each kind of machine that has a matrix, [kinds, accelerators, accelerators]; the first kind
        has none."""
        kinds: list[Matrix] = [((0.0,),)]
        kinds += [group.links for group in self.cluster.machines if group.links]
        most = max(len(kind) for kind in kinds)
        return np.array([np.pad(np.array(kind, np.float64), (0, most - len(kind))) for kind in kinds])

    @cached_property
    def _kind(self) -> Numbers:
        """Of each machine, which of ``_matrices``."""
        counts = [(group.count, bool(group.links)) for group in self.cluster.machines]
        numbers = np.cumsum([has for _, has in counts])
        return np.repeat(
            [number if has else 0 for number, (_, has) in zip(numbers, counts, strict=True)], [n for n, _ in counts]
        )

    @cached_property
    def kinds_of_accelerators(self) -> tuple[Sequence[Machines], Numbers]:
        """What accelerators alone can do, as machines of one without links, and of each accelerator which of these it is."""
        known: dict[Machines, int] = {}
        each = []
        for group in self.machines:
            host = group.host_memory // group.accelerators
            one = replace(group, count=1, accelerators=1, host_memory=host, links=(), network=0.0)
            each.append(known.setdefault(one, len(known)))
        return list(known), np.array(each)[self.machine]

    def rates(self, one: Numbers, other: Numbers) -> Rates:
        """Bytes per second between accelerators, two by two."""
        first, second = self.machine[one], self.machine[other]
        found = np.where(first == second, self._within[first], self.network(first, second))
        listed = (first == second) & (self._kind[first] > 0)
        if listed.any():
            machine, begin = first[listed], self.first[first[listed]]
            found[listed] = self._matrices[self._kind[machine], one[listed] - begin, other[listed] - begin]
        return found

    def latencies(self, one: Numbers, other: Numbers) -> Rates:
        """Seconds of a message between accelerators, two by two."""
        first, second = self.machine[one], self.machine[other]
        return np.where(first == second, self._latency[first], LATENCY_FAR)

    def slowest(self, groups: Numbers) -> Link:
        """Of groups of accelerators, [groups, members]."""
        number, members = groups.shape
        if members < 2:
            return IDLE
        if number * members * (members - 1) <= 2 * _PAIRS:
            one, other = (groups[:, part] for part in np.triu_indices(members, 1))
            return float(self.latencies(one, other).max()), float(self.rates(one, other).min())
        machines = np.sort(self.machine[groups], axis=1)
        far = (machines[:, 0] != machines[:, -1]).any()
        latency = LATENCY_FAR if far else float(self._latency[machines].max())
        return latency, self._slowest_machines(machines)

    def _slowest_machines(self, machines: Numbers) -> float:
        """By machine: ``machines`` of each group's members, sorted."""
        same = machines[:, 1:] == machines[:, :-1]
        found = [float(self._within[machines[:, 1:][same]].min())] if same.any() else []
        crossing = machines[machines[:, 0] != machines[:, -1]]
        if len(crossing) and not self.cluster.links:
            found.append(float(self._own[crossing].min()))
        elif len(crossing):
            for group in np.unique(crossing, axis=0):
                members = np.unique(group)
                between = self._matrix[np.ix_(members, members)]
                found.append(float(between[~np.eye(len(members), dtype=bool)].min()))
        return min(found)


@lru_cache(maxsize=1 << 10)
def _groups(degrees: tuple[int, ...], expert: int, chunks: int) -> Mapping[str, Numbers]:
    tensor, context, sharding, data, pipeline = degrees
    places = np.arange(tensor * context * sharding * data * pipeline)
    grid = places.reshape(pipeline, data, sharding, context, tensor)
    batch = grid.reshape(pipeline, data * sharding, context, tensor)
    rows = np.moveaxis(batch, 1, -1).reshape(-1, data * sharding)
    lines = np.moveaxis(grid, 0, -1).reshape(-1, pipeline)
    following = np.stack([lines, np.roll(lines, -1, axis=1)], axis=-1)
    following = following if chunks > 1 else following[:, :-1]
    return {
        "tensor": grid.reshape(-1, tensor),
        "context": np.moveaxis(grid, 3, -1).reshape(-1, context),
        "expert": rows.reshape(-1, expert),
        "sharding": np.moveaxis(grid, 2, -1).reshape(-1, sharding),
        "data_size": rows,
        "pipeline": following.reshape(-1, 2) if pipeline > 1 else places[:, None],
    }


def groups_of(layout: ParallelLayout) -> Mapping[str, Numbers]:
    """Axis -> places of its groups, [groups, members]; of ``pipeline`` the neighbors, two by two."""
    degrees = (layout.tensor, layout.context, layout.sharding, layout.data, layout.pipeline)
    return _groups(degrees, layout.expert, layout.chunks)


def along(links: Links, layout: ParallelLayout, at: Numbers) -> dict[str, Link]:
    """Axis -> slowest link of its groups, where ``at`` has the accelerator of each place."""
    return {axis: links.slowest(at[groups]) for axis, groups in groups_of(layout).items()}


def placed(cluster: Cluster, links: Links, at: Numbers, found: Mapping[str, Link]) -> Cluster:
    """The cluster as the places of a layout see it, in their order."""
    kinds, numbers = links.kinds_of_accelerators
    mine = numbers[at]
    starts = np.flatnonzero(np.r_[True, mine[1:] != mine[:-1]])
    runs = list(zip(mine[starts].tolist(), np.diff(np.r_[starts, len(mine)]).tolist(), strict=True))
    groups = {run: replace(kinds[run[0]], count=run[1]) for run in set(runs)}
    return replace(cluster, machines=tuple(groups[run] for run in runs), links=(), along=dict(found))
