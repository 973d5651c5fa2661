"""How long stages of a pipeline are idle, measured and by the formula (p - 1) / (v m + p - 1).

Layers sleep instead of computing, 50 ms forward and 100 ms backward, so that the processor's other work does not count:
what is measured are the order of passes, the messages and their threads. Real processes over gloo, the real executor.

    python -m benchmarks.pipeline_bubble            # 2 and 4 stages, 1 and 2 chunks
"""

from __future__ import annotations

import sys
import time
from typing import Any

FORWARD = 0.050
CASES = [(2, 1, 4), (2, 2, 4), (2, 1, 8), (2, 2, 8), (4, 1, 8), (4, 2, 8), (4, 1, 16)]


def model_of(num_layers: int, seconds: float) -> Any:
    """A model of layers that sleep."""
    import paddle
    from paddle import nn
    from paddle.autograd import PyLayer

    from erniecore.api.model import Features

    class Sleep(PyLayer):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any) -> Any:
            time.sleep(seconds)
            return x + weight

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            time.sleep(2 * seconds)
            return dy, dy.sum(axis=[0, 1])

    class Layer(nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = self.create_parameter([8])

        def forward(self, x: Any) -> Any:
            return (Sleep.apply(x, self.weight),)

    class Model(nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.norm = nn.Embedding(16, 8), nn.LayerNorm(8)
            self.layers = nn.LayerList([Layer() for _ in range(num_layers)])
            self.lm_head = nn.Linear(8, 16)

        def features(self, ids: Any) -> Features:
            x = self.embedding(ids)
            for layer in self.layers:
                (x,) = layer(x)
            return Features(self.norm(x))

        def head(self) -> Any:
            return self.lm_head.weight, False, None

        def logits(self, hidden: Any) -> Any:
            return paddle.matmul(hidden, self.lm_head.weight)

    return Model()


def measure(cluster: Any, chunks: int, micros: int) -> float:
    """Seconds of the fastest of four steps, on each rank."""
    import numpy as np
    import paddle
    from erniecore_hybrid_parallel.config import HybridConfig
    from erniecore_hybrid_parallel.pipeline import forward_backward
    from erniecore_hybrid_parallel.planning import make_mesh
    from erniecore_hybrid_parallel.process_group import open_process_group

    from erniecore.api.method import Batch, LossOutput, Objective
    from erniecore.api.model import Layout, Stages

    stages = cluster.world_size
    config = HybridConfig(pipeline=stages, chunks=chunks)
    ranks = open_process_group(config, make_mesh(config, stages), cluster)
    model = model_of(stages * chunks, FORWARD / chunks)
    ranks.share_layers(model, Layout((), Stages("embedding", "layers", "norm")), (1,) * (stages * chunks))

    class Mean(Objective):
        def normalizers(self, batch: Batch) -> dict[str, float]:
            return {"rows": 1.0}

        def __call__(self, batch: Batch, totals: Any) -> LossOutput:
            hidden = model.features(paddle.to_tensor(batch.input_ids)).hidden
            return LossOutput(hidden.mean(), {"loss": (0.0, 1.0)})

    ids = np.zeros([1, 4], np.int64)
    batch = Batch(ids, ids, ids, np.zeros([1, 1, 4, 1], np.int32), {}, 4, 1)
    found = []
    for _ in range(4):
        ranks.all_gather_object(None)
        started = time.perf_counter()
        forward_backward(Mean(), [batch] * micros, ranks)
        found.append(time.perf_counter() - started)
    return min(found)


def main() -> int:
    """Measure and print the table."""
    from erniecore_conformance.processes import on_ranks
    from erniecore_hybrid_parallel.schedules import bubble

    print("stages chunks micro-batches  step ms  idle measured  by the formula")
    for stages, chunks, micros in CASES:
        seconds = max(on_ranks(stages, f"{__file__}:measure", chunks, micros))
        idle = 1 - 3 * FORWARD * micros / seconds
        print(
            f"{stages:6} {chunks:6} {micros:13} {1000 * seconds:8.0f} {idle:14.1%} {bubble(stages, chunks, micros):15.1%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
