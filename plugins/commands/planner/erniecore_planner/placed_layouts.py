"""The layouts that a search found, with their ranks at the places that make a step shortest. ``placement`` has the search for one
layout.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from erniecore.api.planning import LayoutSpace, ParallelLayout
from erniecore_planner.clusters import Cluster
from erniecore_planner.jobs import Job
from erniecore_planner.layout_search import KEPT, Assessed, Found, assess, best_of, search
from erniecore_planner.links import Links, Numbers
from erniecore_planner.placement import Placer, axis_orders, best_places, nested
from erniecore_planner.traffic import Placement, traffic_of

#: a placement that gains less than this share of a step is not worth its settings
WORTH = 1e-3
#: layouts that are placed on clusters whose links or accelerators differ, and accelerators up to which that many are
_MANY, _SMALL = 24, 64


def placed_search(
    job: Job,
    space: LayoutSpace,
    cluster: Cluster,
    sizes: Iterable[int],
    *,
    on_accelerator: bool = True,
) -> Found:
    """As :func:`search`, then the ranks of what it found are placed, and the fastest of that is the fastest.

    The search itself takes ranks in the order of the file, over the slowest links. Where links or accelerators differ, it keeps
    more layouts than are told: a placement may change which is the fastest.
    """
    kept = _MANY if space.places and cluster.size <= _SMALL and not even(cluster) else KEPT
    found = search(job, space, cluster, sizes, on_accelerator=on_accelerator, kept=kept)
    if found.fastest is None or not space.places:
        return found
    layouts = dict.fromkeys([found.fastest, *found.runners_up, found.cheapest, found.lowest_memory])
    chosen = [layout for layout in layouts if layout is not None]
    links = {size: Links(cluster.first(size)) for size in dict.fromkeys(layout.accelerators for layout in chosen)}
    done = [place(job, space, links[one.accelerators], one, on_accelerator=on_accelerator) for one in chosen]
    best = best_of(done, [], found.tried)
    faster = tuple(layout for layout in found.too_large if best.fastest and layout.time.total < best.fastest.time.total)
    return replace(best, too_large=faster)


def even(cluster: Cluster) -> bool:
    """Whether all accelerators and all links of a kind are alike."""
    kinds = {replace(group, count=1, accelerators=1, host_memory=0, links=()) for group in cluster.machines}
    return len(kinds) == 1 and not cluster.links and not any(group.links for group in cluster.machines)


def place(job: Job, space: LayoutSpace, links: Links, found: Assessed, *, on_accelerator: bool = True) -> Assessed:
    """A layout with its ranks at the best places; those of the file where others gain next to nothing."""
    if links.uniform or not space.places:
        return found
    placer = Placer(job, space, links.cluster, found.layout, found.options, links)
    at, before = best_places(placer, on_accelerator=on_accelerator), placer.seconds(placer.file_order)
    if placer.seconds(at) > before * (1 - WORTH):
        at = placer.file_order
    time, layout, cluster = placer.of(at)
    order, ranks = counted(layout, at)
    layout = replace(layout, order=order, ranks=ranks)
    where = Placement(
        tuple(at.tolist()), time.total, before, traffic_of(job, cluster, layout, found.options, links, at)
    )
    made = assess(job, cluster, layout, found.options, on_accelerator=on_accelerator, time=time)
    return replace(made, placement=where)


def counted(layout: ParallelLayout, at: Numbers) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """``order`` and ``ranks`` of a layout that give its places these accelerators: with as few ranges of ranks as there are."""
    orders = list(axis_orders(layout))
    found = []
    for number, order in enumerate(orders):
        ranks = np.empty_like(at)
        ranks[nested(layout, order, np.arange(layout.size))] = at
        found.append((int((np.diff(ranks) != 1).sum()), number, ranks))
    breaks, number, ranks = min(found, key=lambda row: row[:2])
    return orders[number] if number else (), tuple(ranks.tolist()) if breaks else ()
