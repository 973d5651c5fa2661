"""How long the search for layouts of 300B-A47B takes on thousands of accelerators: every size that ``ernie plan --accelerators``
tries, from one accelerator to all. Seconds of the processor, so that what else runs on the machine does not count; one process.

    python -m benchmarks.plan_scale
    python -m benchmarks.plan_scale 2016 16384
"""

from __future__ import annotations

import sys
import time

from erniecore_planner.clusters import GB, Machines, uniform
from erniecore_planner.jobs import Job
from erniecore_planner.layout_plan import degrees_text, worth_trying
from erniecore_planner.layout_search import search

from benchmarks.plan_resources import shape_of
from erniecore.api.command import layout_spaces

ACCELERATOR = Machines(1, 8, "accelerator", 80 * GB, 400e12, link=200 * GB, host_memory=2000 * GB)


def main(words: list[str]) -> int:
    """Print a row for each number of accelerators and length of a row."""
    shape = shape_of("300b-a47b")
    space = dict(layout_spaces(shape))["hybrid"]
    print("| accelerators | tokens of a row | degrees | seconds | fastest |\n|---|---|---|---|---|")
    for count in map(int, words or ("2016", "16384")):
        cluster = uniform(count, ACCELERATOR)
        for length in (4096, 8192):
            job = Job(shape, length, micro=1, rows=4 * count)
            started = time.process_time()
            found = search(job, space, cluster, list(worth_trying(cluster)))
            seconds = time.process_time() - started
            best = degrees_text(found.fastest) if found.fastest else "none fits"
            print(f"| {count:,} | {length:,} | {found.tried:,} | {seconds:.1f} | {best} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
