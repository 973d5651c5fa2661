"""How long the search for layouts of 300B-A47B takes on thousands of accelerators: every size that ``ernie plan --accelerators``
tries, from one accelerator to all, and of choosing the places of ranks in what it found. Equal machines, and two kinds in turns
of which one has half the speed and half the network. Seconds of the processor, so that what else runs on the machine does not
count; one process.

    python -m benchmarks.plan_scale
    python -m benchmarks.plan_scale 2016 16384
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from erniecore_planner.clusters import GB, NETWORK, Cluster, Machines, uniform
from erniecore_planner.jobs import Job
from erniecore_planner.layout_plan import degrees_text, worth_trying
from erniecore_planner.placed_layouts import placed_search

from benchmarks.plan_resources import shape_of
from erniecore.api.command import layout_spaces

ACCELERATOR = Machines(1, 8, "accelerator", 80 * GB, 400e12, link=200 * GB, host_memory=2000 * GB)


def mixed(count: int) -> Cluster:
    """So many accelerators, in blocks of 63 machines of either kind."""
    slow, groups = replace(ACCELERATOR, flops=ACCELERATOR.flops / 2, network=NETWORK / 2), []
    left = count // ACCELERATOR.accelerators
    while left:
        groups.append(replace((ACCELERATOR, slow)[len(groups) % 2], count=min(left, 63)))
        left -= groups[-1].count
    return Cluster(tuple(groups))


def main(words: list[str]) -> int:
    """Print a row for each number of accelerators and length of a row."""
    shape = shape_of("300b-a47b")
    space = dict(layout_spaces(shape))["hybrid"]
    print(
        "| accelerators | machines | tokens of a row | degrees | seconds | fastest | places |\n|---|---|---|---|---|---|---|"
    )
    for count in map(int, words or ("2016", "16384")):
        clusters = {"equal": uniform(count, ACCELERATOR), "two kinds": mixed(count)}
        for kind, length in ((kind, length) for kind in clusters for length in (4096, 8192)):
            cluster = clusters[kind]
            job = Job(shape, length, micro=1, rows=4 * count)
            started = time.process_time()
            found = placed_search(job, space, cluster, list(worth_trying(cluster)))
            seconds = time.process_time() - started
            best = degrees_text(found.fastest) if found.fastest else "none fits"
            where = found.fastest.placement if found.fastest else None
            gain = f"{where.file_order / where.seconds:.3f} x" if where else ""
            row = f"{count:,} | {kind} | {length:,} | {found.tried:,} | {seconds:.1f} | {best} | {gain}"
            print(f"| {row} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
