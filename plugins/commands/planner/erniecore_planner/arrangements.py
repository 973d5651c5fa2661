"""All ways to put the accelerators of a small cluster at the places of a layout that may differ: accelerators of one machine are
alike unless it has a matrix of links, and so are equal machines unless the cluster has one. Pure functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import factorial

import numpy as np

from erniecore.api.planning import ParallelLayout
from erniecore_planner.links import Links, Numbers, groups_of

#: placements that are tried completely
MOST = 50_000


def arrangements(links: Links, most: int) -> Numbers | None:
    """The accelerator of each place, [arrangements, places]; None for more than ``most``."""
    if number_of(links) > most:
        return None
    if links.arranged is None:
        links.arranged = np.array(list(_every(links)), dtype=np.int64)
    return links.arranged


def _kinds(links: Links) -> list[object]:
    """What each machine is like; only equal ones can take each other's places."""
    return [
        number if links.cluster.links or m.links else replace(m, count=1) for number, m in enumerate(links.machines)
    ]


def number_of(links: Links) -> int:
    """How many arrangements there are: all orders, but for those of alike accelerators and of alike machines."""
    found = factorial(links.size)
    for machine in links.machines:
        found //= 1 if machine.links else factorial(machine.accelerators)
    for number in Counter(_kinds(links)).values():
        found //= factorial(number)
    return found


def _every(links: Links) -> Iterator[list[int]]:
    """By recursion over places: an accelerator of each machine that has one left, of equal machines without any in use the
    first."""
    kinds = _kinds(links)
    left = [
        list(range(f + m.accelerators - 1, f - 1, -1))
        for f, m in zip(links.first.tolist(), links.machines, strict=True)
    ]
    taken: list[int] = []

    def place() -> Iterator[list[int]]:
        if len(taken) == links.size:
            yield list(taken)
            return
        fresh: list[object] = []
        for machine, free in enumerate(left):
            if not free:
                continue
            if len(free) == links.machines[machine].accelerators:
                if kinds[machine] in fresh:
                    continue
                fresh.append(kinds[machine])
            choices = list(free) if links.machines[machine].links else free[-1:]
            for accelerator in reversed(choices):
                at = free.index(accelerator)
                free.pop(at)
                taken.append(accelerator)
                yield from place()
                taken.pop()
                free.insert(at, accelerator)

    yield from place()


def distinct(links: Links, layout: ParallelLayout, every: Numbers, kinds: Numbers) -> Iterator[Numbers]:
    """Of arrangements along whose axes the same links are the slowest, and whose ``kinds``, [arrangements, …], are the same,
    the first."""
    columns = [kinds.reshape(len(every), -1).astype(np.float64)]
    for groups in groups_of(layout).values():
        one, other = np.triu_indices(groups.shape[1], 1)
        if not len(one):
            continue
        first, second = every[:, groups[:, one].reshape(-1)], every[:, groups[:, other].reshape(-1)]
        columns.append(links.rates(first, second).min(axis=1)[:, None])
        columns.append(links.latencies(first, second).max(axis=1)[:, None])
    _, found = np.unique(np.concatenate(columns, axis=1), axis=0, return_index=True)
    for index in np.sort(found).tolist():
        yield every[index]
