"""A bound of a layout's step time from below that costs little: no choice of options for its degrees makes a faster step. A
search leaves out what cannot be among the best by it. Pure functions.

A pipeline takes at least as long as with the stage that has most products as its slowest; nothing is computed again, and the
update takes no time. Where that stage is the slowest, with its messages too, this is the time itself but for the update.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from erniecore.api.planning import ParallelLayout
from erniecore_planner.clusters import Cluster
from erniecore_planner.jobs import Job
from erniecore_planner.layout_memory import IMBALANCE
from erniecore_planner.layout_time import (
    accelerators_of_stage,
    at_the_end,
    layer_costs,
    messages,
    micro_batches_of,
    passed_on,
    stages,
)
from erniecore_planner.layouts import Options
from erniecore_planner.shares import rank_speeds

#: sums in another order may be larger in the last bits
_ROUNDING = 1 - 1e-9


def least_time(job: Job, cluster: Cluster, chosen: ParallelLayout) -> float:
    """Seconds that a step takes at least, whatever ``sharding_stage``, ``sequence``, recomputation and offload are chosen."""
    levels = (1, 2, 3) if chosen.sharding > 1 else (1,)
    index, bounds, work = _most_work(job, cluster, chosen.split, chosen.pipeline, chosen.size)
    micro_batches = micro_batches_of(job, chosen)
    passes = micro_batches + chosen.pipeline - 1
    products = passes * work / (chosen.tensor * chosen.context) / accelerators_of_stage(cluster, chosen, index).flops
    if chosen.shares:
        ends = (share / speed for share, speed in zip(chosen.shares, rank_speeds(cluster, chosen), strict=True))
        products = work / (chosen.tensor * chosen.context) * max(ends)
    products += passed_on(job, cluster, chosen, micro_batches)
    found = []
    for level in levels:
        variant = replace(chosen, sharding_stage=level)
        sent = sum(messages(job, cluster, variant, Options(), *bounds, IMBALANCE if chosen.expert > 1 else 1.0))
        gradients, _ = at_the_end(job, cluster, variant, Options(), ((index, bounds),))
        found.append(passes * sent + gradients)
    return (products + min(found)) * _ROUNDING


@lru_cache(maxsize=1 << 12)
def _most_work(
    job: Job, cluster: Cluster, split: tuple[int, ...], pipeline: int, size: int
) -> tuple[int, tuple[int, int], float]:
    """(index, (first layer, end), FLOPs of a micro-batch) of the stage whose products take longest, on as many accelerators."""
    costs, layout = layer_costs(job, "none"), ParallelLayout(pipeline=pipeline, data=size // pipeline, split=split)
    found = [
        (index, bounds, sum(costs[bounds[0] : bounds[1]]) * job.tokens)
        for index, bounds in enumerate(stages(job, layout))
    ]
    return max(found, key=lambda row: row[2] / accelerators_of_stage(cluster, layout, row[0]).flops)
