"""Two unequal ranks: the step time that the planner expects of shares by speed, and the measured one, beside the even split. The
second rank is four times slower.

Layers sleep instead of computing, so that the processor's other work does not count. What a layer takes on each rank is measured
first, and is all that the planner is told; the run itself is the real executor over gloo.

    python -m benchmarks.unequal_ranks
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.pipeline_bubble import model_of

#: seconds of a layer's forward pass; the backward pass takes twice that
FAST, SLOW = 0.020, 0.080
LAYERS, MICRO_BATCHES = 5, 5


def measure(cluster: Any, shares: list[int], split: list[int]) -> tuple[float, float]:
    """Seconds of (one micro-batch through one layer on this rank, the fastest of three steps on all).

    Args:
        shares: micro-batches of each rank. split: layers of each of two stages; empty: every rank has all layers.
    """
    import numpy as np
    import paddle
    from erniecore_hybrid_parallel import pipeline
    from erniecore_hybrid_parallel.config import HybridConfig
    from erniecore_hybrid_parallel.planning import make_mesh
    from erniecore_hybrid_parallel.process_group import open_process_group

    from erniecore.api.method import Batch, LossOutput, Objective
    from erniecore.api.model import Layout, Stages
    from erniecore.api.training import forward_backward

    config = HybridConfig(pipeline=2) if split else HybridConfig(data=2)
    ranks = open_process_group(config, make_mesh(config, 2), cluster)
    seconds = (FAST, SLOW)[cluster.rank]
    model, alone = model_of(LAYERS, seconds), model_of(1, seconds)
    if split:
        model = ranks.share_layers(model, Layout((), Stages("embedding", "layers", "norm")), tuple(split))

    class Mean(Objective):
        def __init__(self, of: Any) -> None:
            self.of = of

        def normalizers(self, batch: Batch) -> dict[str, float]:
            return {"rows": 1.0}

        def __call__(self, batch: Batch, totals: Any) -> LossOutput:
            hidden = self.of.features(paddle.to_tensor(batch.input_ids)).hidden
            return LossOutput(hidden.mean(), {"loss": (0.0, 1.0)})

    ids = np.zeros([1, 4], np.int64)
    batch = Batch(ids, ids, ids, np.zeros([1, 1, 4, 1], np.int32), {}, 4, 1)
    single = min(timed(lambda: forward_backward(Mean(alone), [batch], None)) for _ in range(3))
    found = []
    for _ in range(3):
        ranks.all_gather_object(None)
        started = time.perf_counter()
        (pipeline.forward_backward if split else forward_backward)(
            Mean(model), [batch] * (MICRO_BATCHES * 2 if split else shares[cluster.rank]), ranks
        )
        ranks.all_gather_object(None)  # gradients would be summed here
        found.append(time.perf_counter() - started)
    return single, min(found)


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def planned(layer_seconds: tuple[float, float], shares: tuple[int, ...], split: tuple[int, ...]) -> float:
    """Seconds of a step by ``ernie plan``'s arithmetic; the rates of both ranks are those of the measured layers."""
    from erniecore_planner.clusters import Cluster, Machines
    from erniecore_planner.jobs import Job
    from erniecore_planner.layout_time import layer_flops, step_time
    from erniecore_planner.layouts import Options

    from erniecore.api.model import DecoderShape
    from erniecore.api.planning import ParallelLayout

    micro_batches = 2 * MICRO_BATCHES if split else sum(shares)
    shape = tiny_shape()
    job = Job(shape, length=4, micro=1, rows=micro_batches)
    flops = layer_flops(job, shape.layers[0], "none") * job.tokens
    machine = Machines(1, 1, "rank", 1 << 30, 1.0, link=1e15)
    machines = tuple(replace(machine, flops=flops / seconds) for seconds in layer_seconds)
    layout = ParallelLayout(pipeline=2, split=split) if split else ParallelLayout(data=2, shares=shares)
    assert isinstance(shape, DecoderShape)
    return step_time(job, Cluster(machines, network=1e15), layout, Options()).total


def tiny_shape() -> Any:
    """Of a decoder with as many layers, whose head costs next to nothing."""
    from erniecore.api.model import DecoderShape, LayerShape

    layer = LayerShape(heads=8, kv_heads=8, head_dim=64, mlp=2048)
    return DecoderShape(hidden=512, vocab=8, tied=False, layers=(layer,) * LAYERS)


def main() -> int:
    """Measure and print the table."""
    from erniecore_conformance.processes import on_ranks
    from erniecore_hybrid_parallel.split import balanced, costs_of
    from erniecore_planner.shares import fastest_shares

    speeds, costs = (1.0, FAST / SLOW), costs_of(tiny_shape())
    shares = fastest_shares(2 * MICRO_BATCHES, speeds)
    stages = balanced(costs, 2), balanced(costs, 2, speeds)
    ways = (
        ("micro-batches", ((MICRO_BATCHES,) * 2, ()), (shares, ())),
        ("layers of stages", ((), stages[0]), ((), stages[1])),
    )
    print("| | planned, s | measured, s | difference | times faster than even |\n|---|---|---|---|---|")
    for name, even, chosen in ways:
        times = {}
        for kind, (share, split) in (("even", even), ("by speed", chosen)):
            found = on_ranks(2, f"{__file__}:measure", list(share), list(split))
            seconds = max(row[1] for row in found)
            expected = planned((found[0][0], found[1][0]), share, split)
            times[kind] = seconds
            gain = f"{times['even'] / seconds:.2f}"
            text = "+".join(map(str, share or split))
            print(
                f"| {name} {text} | {expected:.2f} | {seconds:.2f} | {seconds / expected - 1:+.1%} | {gain} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
