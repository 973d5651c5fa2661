"""Forward and backward passes of one optimizer step on a stage of a pipeline, in the order of ``schedules.py``. What the
core's own step does for one process, with the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddle import Tensor  # noqa: TID253

from erniecore.api.method import Objective
from erniecore.api.parallel import Batch, StepOutput
from erniecore.api.training import add_metrics, step_totals
from erniecore_hybrid_parallel.pipe import Passed, Pipe
from erniecore_hybrid_parallel.schedules import schedule


def forward_backward(objective: Objective, batches: Sequence[Batch], ranks: Any) -> StepOutput:
    """Accumulates gradients in ``parameter.grad``. Metrics are those of the last part; other stages have none."""
    pipe: Pipe = ranks.pipe
    totals = step_totals(objective, batches, ranks)
    passes: dict[tuple[int, int], tuple[Passed, Tensor]] = {}
    metrics = []
    for action in schedule(pipe.stage, pipe.stages, pipe.chunks, len(batches)):
        which = action.micro, action.chunk
        with pipe.running(pipe.virtual_stage_of(action.chunk)):
            if action.forward:
                pipe.passed = Passed()
                output = objective(batches[action.micro], totals)
                # ranks that share the positions of a row compute the same losses from them
                passes[which], pipe.passed = (pipe.passed, output.loss / ranks.replication_factor), None
                ranks.parameters.prefetch.ended()
                if pipe.ends:
                    metrics.append(output.metrics)
                del output  # or its graph would outlive its backward pass
            else:
                pipe.backward(*passes.pop(which))
                ranks.backward_done()
    pipe.links.flush()
    return StepOutput(metrics=add_metrics(metrics), num_tokens=sum(batch.num_tokens for batch in batches))
