"""Two checks of the planner against a claim of ERNIE 3.0 Titan (arXiv 2112.12731, section 4.1.2 and table 1): with a partition
by the resources, its run on NPUs has up to 2.1 times the throughput on 22 % more accelerators.

What was compared there are two configurations of one run: the default, and one with another balance around the layers of the
task-specific networks, which are small and whose kernels take long to launch on an NPU. How long, the text does not say. The
first table therefore has a row for each share of a large layer's time that a small one may take: a pipeline split by products,
and split by time on as many and on 22 % more stages. The second table is placement alone, on a cluster of the paper's size with
rates that are assumed: the layout that is fastest in the order of the file, and the same with its ranks placed.

    python -m benchmarks.resource_aware
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from erniecore_hybrid_parallel.split import Costs, balanced
from erniecore_planner.clusters import GB, Cluster, Machines
from erniecore_planner.jobs import Job
from erniecore_planner.layout_plan import degrees_text, worth_trying
from erniecore_planner.layout_search import search
from erniecore_planner.links import Links
from erniecore_planner.placed_layouts import place

from erniecore.api.command import layout_spaces
from erniecore.api.model import DecoderShape, LayerShape

#: the universal network, and the two task-specific ones, one after the other
LARGE, SMALL, WIDTH, SMALL_WIDTH = 48, 24, 12288, 768
#: stages by default, and with 22 % more
STAGES, MORE = 18, 22
MICRO_BATCHES = 128
#: a dense decoder with the products of the universal network: 16 x 12,288 columns of two matrices are 2/3 of that of three
LAYER = LayerShape(heads=192, kv_heads=192, head_dim=64, mlp=16 * WIDTH * 2 // 3)
SHAPE = DecoderShape(hidden=WIDTH, vocab=50304, tied=False, layers=(LAYER,) * LARGE)


def step(split: tuple[int, ...], times: tuple[float, ...]) -> float:
    """Of 1F1B, in times of a large layer."""
    slowest = max(Costs(times, 0.0, 0.0).per_stage(split))
    return (MICRO_BATCHES + len(split) - 1) * slowest


def partition() -> None:
    """Print the table of splits, by the time that a small layer takes."""
    print(
        "| small layer / large layer | by products, 18 stages | by time, 18 stages | by time, 22 stages | times faster |"
    )
    print("|---|---|---|---|---|")
    small_products = (SMALL_WIDTH / WIDTH) ** 2
    products = Costs((1.0,) * LARGE + (small_products,) * SMALL, 0.0, 0.0)
    for share in (small_products, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3):
        times = (1.0,) * LARGE + (share,) * SMALL
        ways = (
            balanced(products, STAGES),
            balanced(Costs(times, 0.0, 0.0), STAGES),
            balanced(Costs(times, 0.0, 0.0), MORE),
        )
        seconds = [step(split, times) for split in ways]
        print(f"| {share:.3f} | " + " | ".join(f"{one:.0f}" for one in seconds) + f" | {seconds[0] / seconds[2]:.2f} |")


def cluster_of(rooms: int) -> Cluster:
    """240 machines of eight NPUs: two fours that are joined well, a network of 100 Gbit/s per NPU; machines of the same of
    ``rooms`` rooms reach each other at full rate, others at a quarter. Machines of the rooms are listed in turns."""
    within = tuple(tuple(30.0 * GB if i // 4 == j // 4 else 12.0 * GB for j in range(8)) for i in range(8))
    machine = Machines(
        240, 8, "NPU", 32 * GB, 256e12 * 0.45, bandwidth=1200 * GB, link=12 * GB, links=within, host_memory=768 * GB
    )
    if rooms == 1:
        return Cluster((machine,), 12.5 * GB)
    links = tuple(tuple(12.5 * GB if i % rooms == j % rooms else 3.125 * GB for j in range(240)) for i in range(240))
    return Cluster((machine,), 12.5 * GB, links)


def placement() -> None:
    """Print the table of places, by the number of rooms."""
    print("| rooms | layout | step in the order of the file, s | placed, s | times faster | seconds of the processor |")
    print("|---|---|---|---|---|---|")
    space = dict(layout_spaces(SHAPE))["hybrid"]
    job = Job(SHAPE, length=512, micro=1, rows=4 * 1920)
    for rooms in (1, 2, 4):
        cluster = cluster_of(rooms)
        started = time.process_time()
        found = search(job, space, cluster, list(worth_trying(cluster)))
        if found.fastest is None:
            print(f"| {rooms} | none fits | | | | |")
            continue
        placed = place(job, space, Links(cluster.first(found.fastest.accelerators)), found.fastest)
        where = placed.placement
        assert where is not None
        seconds = time.process_time() - started
        gain = where.file_order / where.seconds
        text = degrees_text(replace(found.fastest, placement=None))
        print(
            f"| {rooms} | {text} | {where.file_order:.2f} | {where.seconds:.2f} | {gain:.2f} | {seconds:.1f} |",
            flush=True,
        )


def main() -> int:
    """Print both tables, the one of splits first."""
    partition()
    print()
    placement()
    return 0


if __name__ == "__main__":
    sys.exit(main())
