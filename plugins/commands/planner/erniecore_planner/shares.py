"""Uneven shares of a step on accelerators that are not equally fast: how many micro-batches each data-parallel rank gets, so that
the last one is done as early as it can be. Exact: of all ways to share whole micro-batches none has an earlier end.
"""

from __future__ import annotations

import heapq
from functools import lru_cache

from erniecore.api.planning import ParallelLayout
from erniecore_planner.clusters import Cluster


@lru_cache(maxsize=1 << 8)
def fastest_shares(micro_batches: int, speeds: tuple[float, ...]) -> tuple[int, ...]:
    """Micro-batches of each rank, at least one: each one goes to the rank that would be done with it first, which makes the
    latest end as early as possible (the divisor method of D'Hondt minimizes the largest share / speed).

    Raises:
        ValueError: fewer micro-batches than ranks.
    """
    if micro_batches < len(speeds):
        raise ValueError(f"{micro_batches} micro-batches for {len(speeds)} ranks")
    shares = [1] * len(speeds)
    ends = [(2 / speed, rank) for rank, speed in enumerate(speeds)]
    heapq.heapify(ends)
    for _ in range(micro_batches - len(speeds)):
        _, rank = ends[0]
        shares[rank] += 1
        heapq.heapreplace(ends, ((shares[rank] + 1) / speeds[rank], rank))
    return tuple(shares)


def rank_speeds(cluster: Cluster, layout: ParallelLayout) -> tuple[float, ...]:
    """FLOP/s of each data-parallel rank of a layout without a pipeline: of the slowest accelerator of its group."""
    return _speeds(cluster, layout.tensor * layout.context, layout.data_size)


@lru_cache(maxsize=1 << 8)
def _speeds(cluster: Cluster, group: int, groups: int) -> tuple[float, ...]:
    return tuple(cluster.slowest(i * group, (i + 1) * group).flops for i in range(groups))


def shares_of(cluster: Cluster, layout: ParallelLayout, micro_batches: int) -> tuple[int, ...]:
    """The shares of a step of so many micro-batches; empty where even ones are best, or where ranks have to make their passes
    together (experts, sharded gradients) or are stages of a pipeline, whose layers are split by speed instead."""
    together = layout.expert > 1 or (layout.sharding > 1 and layout.sharding_stage > 1)
    if cluster.equally_fast or layout.pipeline > 1 or together or micro_batches < layout.data_size:
        return ()
    shares = fastest_shares(micro_batches, rank_speeds(cluster, layout))
    return () if len(set(shares)) == 1 else shares
