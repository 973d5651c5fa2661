"""Collectives of this machine, measured: processes that all reduce and gather messages of several sizes, and the latency and
bandwidth that explain the times best. The starting process imports no paddle.

A collective of n bytes among g ranks takes k ((g - 1) a + n (g - 1) / (g b)), with k = 2 for an all-reduce and 1 for an
all-gather (ring; Thakur et al., 2005): ``fitted`` finds a and b.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from typing import Any

from erniecore.api import EnvironmentFault
from erniecore.api.launcher import Cluster, follow_parent, free_port, parent_variables
from erniecore.api.measuring import open_device, paddle_variables, read_cluster
from erniecore_planner.rates import LinkRate, identity

#: bytes of a message
SIZES = (4 << 10, 256 << 10, 4 << 20, 16 << 20)
#: collective -> k
FACTORS = {"all_reduce": 2, "all_gather": 1}


def measure_links(device: str, processes: int, seconds: float) -> tuple[LinkRate, list[dict[str, Any]]]:
    """Latency and bandwidth between processes of this machine, and every measurement.

    Raises:
        EnvironmentFault: a process failed; its last line is quoted.
    """
    master = f"127.0.0.1:{free_port()}"
    request = json.dumps({"device": device, "seconds": seconds})
    started = []
    for rank in range(processes):
        cluster = Cluster(rank=rank, world_size=processes, local_rank=rank, master=master)
        command = [sys.executable, "-m", "erniecore_planner.measure_comm", request]
        environ = {**os.environ, **paddle_variables(cluster), **parent_variables()}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True))
    results = []
    try:
        for process in started:
            out, err = process.communicate()
            if process.returncode:
                said = (err.strip().splitlines() or ["nothing said"])[-1]
                raise EnvironmentFault("a process of the measurement failed", found=said, where=f"device {device}")
            results.append(json.loads(out.strip().splitlines()[-1]))
    finally:
        for process in started:
            process.kill()
            process.wait()
    rows = results[0]["rows"]
    latency, bandwidth = fitted(rows, processes)
    contention = max(1.0, max(a["together"] for a in results) / results[0]["alone"])
    day = date.today().isoformat()
    return LinkRate(device, results[0]["machine"], processes, latency, bandwidth, day, contention), rows


def fitted(rows: Sequence[dict[str, Any]], processes: int) -> tuple[float, float]:
    """(seconds per message, bytes per second): least squares of the relative errors, neither below almost nothing."""
    import numpy as np

    ways = (processes - 1) * np.array([[FACTORS[r["what"]], FACTORS[r["what"]] * r["bytes"] / processes] for r in rows])
    times = np.array([r["seconds"] for r in rows])
    found, *_ = np.linalg.lstsq(ways / times[:, None], np.ones(len(rows)), rcond=None)
    return max(float(found[0]), 1e-7), 1 / max(float(found[1]), 1e-13)


def main(request: dict[str, Any]) -> None:
    """One process: open the device, meet the others, measure, print JSON."""
    cluster = read_cluster(os.environ)
    device = open_device(request["device"], cluster=cluster)
    import paddle
    import paddle.distributed as dist

    dist.init_parallel_env()
    rows = []
    for size in SIZES:
        tensor, parts = paddle.zeros([size // 4]), paddle.zeros([size // 4 // cluster.world_size])
        joined = paddle.zeros([parts.shape[0] * cluster.world_size])
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": partial(dist.all_reduce, tensor),
            "all_gather": partial(dist.stream.all_gather, joined, parts),
        }
        for what, call in calls.items():
            rows.append({"what": what, "bytes": size, "seconds": _timed(call, tensor, request["seconds"])})
    alone, together = _contention(cluster)
    machine = identity(device.describe())
    print(json.dumps({"rows": rows, "machine": machine, "alone": alone, "together": together}), flush=True)


def _contention(cluster: Cluster) -> tuple[float, float]:
    """Median seconds of products and sums: of rank 0 while the others wait, and of this rank while all compute."""
    import paddle
    import paddle.distributed as dist

    left, big = paddle.rand([512, 512]), paddle.rand([1 << 20])

    def work() -> float:
        started = time.perf_counter()
        float((left @ left)[0, 0] + (big + big)[0])
        return time.perf_counter() - started

    times = []
    for everybody in (False, True):
        dist.barrier()
        times.append(statistics.median(work() for _ in range(60)) if everybody or not cluster.rank else 0.0)
    return times[0], times[1]


def _timed(call: Callable[[], Any], tensor: Any, seconds: float) -> float:
    """Median of calls, each behind a few milliseconds of products, as in a step: ranks then do not arrive at once, and over
    gloo a message waits for a processor. With their products they take about ``seconds`` together. The number of calls is the
    same on all ranks: it follows from the slowest of the first two."""
    import paddle
    import paddle.distributed as dist

    left = paddle.rand([512, 512])

    def once() -> float:
        for _ in range(4):
            product = left @ left
        float(product[0, 0])
        started = time.perf_counter()
        call()
        float(tensor[0])  # waits for the device
        return time.perf_counter() - started

    once()
    started = time.perf_counter()
    once()
    first = paddle.to_tensor([time.perf_counter() - started], dtype="float64")
    dist.all_reduce(first, op=dist.ReduceOp.MAX)
    count = max(3, min(200, int(seconds / max(float(first[0]), 1e-6))))
    return statistics.median(once() for _ in range(count))


if __name__ == "__main__":
    follow_parent()
    main(json.loads(sys.argv[1]))
