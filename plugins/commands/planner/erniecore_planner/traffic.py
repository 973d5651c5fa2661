"""What the ranks of a placed layout send along each axis, over which links, and which ranks are where: what ``ernie plan``
shows of a placement. No arithmetic of its own: bytes are the seconds of links that pass one byte per second without latency.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from erniecore.api.planning import ParallelLayout
from erniecore_planner.clusters import Cluster
from erniecore_planner.jobs import Job
from erniecore_planner.layout_time import StepTime, micro_batches_of, passed_on, step_time
from erniecore_planner.layouts import Options
from erniecore_planner.links import Links, Numbers, groups_of

#: what is sent -> the axis whose links it takes
SENT = {
    "tensor": "tensor",
    "expert": "expert",
    "context": "context",
    "sharding": "sharding",
    "pipeline": "pipeline",
    "gradients": "data_size",
}
#: machines that a rank map shows on the console
_SHOWN = 16


@dataclass(frozen=True, slots=True)
class Traffic:
    """What goes along one axis.

    Attributes:
        axis: its name; ``gradients``: between ranks with other rows, at the end of a step.
        size: bytes that a rank sends in a step. latency: seconds per message, rate: bytes per second of the slowest link
            that a group uses. seconds: of a step. machines: the most that one group lies on.
    """

    axis: str
    size: float
    latency: float
    rate: float
    seconds: float
    machines: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the ranks of a layout are.

    Attributes:
        at: accelerator of each place, in the order of the cluster; places count ``tensor`` fastest, then context, sharding,
            data, pipeline.
        seconds: of a step. file_order: seconds of a step where ranks fill the machines in the order of the file.
        traffic: by axis, what takes most seconds first.
    """

    at: tuple[int, ...]
    seconds: float
    file_order: float
    traffic: tuple[Traffic, ...]


def traffic_of(
    job: Job, cluster: Cluster, layout: ParallelLayout, option: Options, links: Links, at: Numbers
) -> tuple[Traffic, ...]:
    """By axis. ``cluster``: as the places of ``layout`` see it."""
    counted = replace(cluster, along=dict.fromkeys(cluster.along, (0.0, 1.0)))
    sizes, times = (_sent(job, each, layout, option) for each in (counted, cluster))
    found = []
    for name, axis in SENT.items():
        if times[name] > 0:
            machines = np.sort(links.machine[at[groups_of(layout)[axis]]], axis=1)
            most = 1 + int((machines[:, 1:] != machines[:, :-1]).sum(axis=1).max())
            found.append(Traffic(name, sizes[name], *cluster.along[axis], times[name], most))
    return tuple(sorted(found, key=lambda one: -one.seconds))


def _sent(job: Job, cluster: Cluster, layout: ParallelLayout, option: Options) -> dict[str, float]:
    time: StepTime = step_time(job, cluster, layout, option)
    passed = passed_on(job, cluster, layout, micro_batches_of(job, layout))
    return {name: passed if name == "pipeline" else float(getattr(time, name)) for name in SENT}


def rank_map(layout: ParallelLayout, links: Links, at: Numbers) -> Iterator[tuple[str, str]]:
    """(machine, what its ranks are) of each machine in the order of the file."""
    sizes = {axis: int(getattr(layout, axis)) for axis in ("pipeline", "data", "sharding", "context", "tensor")}
    grid = np.stack(np.unravel_index(np.argsort(at), list(sizes.values())), axis=-1)
    for number, (start, group) in enumerate(zip(links.first.tolist(), links.machines, strict=True)):
        mine = grid[start : start + group.accelerators]
        parts = [
            f"{'stage' if axis == 'pipeline' else axis} {_ranges(np.unique(mine[:, column]).tolist())}"
            for column, (axis, size) in enumerate(sizes.items())
            if size > 1
        ]
        last = start + group.accelerators - 1
        ranks = f"ranks {start}-{last}" if last > start else f"rank {start}"
        yield f"machine {number} ({group.accelerator}), {ranks}", ", ".join(parts)


def _ranges(numbers: list[int]) -> str:
    """``0-3,6``."""
    starts = [n for i, n in enumerate(numbers) if not i or numbers[i - 1] != n - 1]
    ends = [n for i, n in enumerate(numbers) if i + 1 == len(numbers) or numbers[i + 1] != n + 1]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def shown_map(layout: ParallelLayout, links: Links, at: Numbers) -> Iterator[str]:
    """Lines for the console: of many machines the first ones."""
    for number, (machine, ranks) in enumerate(rank_map(layout, links, at)):
        if number == _SHOWN:
            yield f"and {len(links.machines) - _SHOWN} machines more, which --json lists"
            return
        yield f"{machine}: {ranks}"
