"""Forward and backward of one optimizer step: the core's own way, one micro-batch after the other. A pipeline
strategy replaces it through the hook ``ernie_forward_backward``. No update of weights here. Importing it is light: the
hook is registered before paddle comes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from erniecore.engine.process_group import sum_named
from erniecore.plugin import hookimpl
from erniecore.types.process_group import ProcessGroup
from erniecore.types.run import Objective, StepOutput
from erniecore.types.samples import Batch


class CoreStep:
    """Provider of the hook that every other implementation comes before."""

    @hookimpl(trylast=True)
    def ernie_forward_backward(self, run: Any, batches: Sequence[Batch]) -> StepOutput:
        return forward_backward(run.objective, batches, run.ranks)


def total_normalizers(objective: Objective, batches: Sequence[Batch]) -> dict[str, float]:
    """Denominators of the step: the sum over its micro-batches, so that every token weighs the same in whichever
    micro-batch it is."""
    totals: dict[str, float] = {}
    for batch in batches:
        for name, value in objective.normalizers(batch).items():
            totals[name] = totals.get(name, 0.0) + value
    return totals


def step_totals(objective: Objective, batches: Sequence[Batch], ranks: ProcessGroup | None = None) -> dict[str, float]:
    """Denominators of the step over all ``ranks``, each of which calls this."""
    totals = total_normalizers(objective, batches)
    return totals if ranks is None or ranks.size == 1 else sum_named(ranks, totals)


def forward_backward(objective: Objective, batches: Sequence[Batch], ranks: ProcessGroup | None = None) -> StepOutput:
    """Accumulates the gradient of this rank's share of the step's loss in ``parameter.grad``: the denominators are those
    of all ``ranks``. Sums of metrics are this rank's and stay on the device."""
    from erniecore.engine import metrics

    totals = step_totals(objective, batches, ranks)
    parts = []
    for batch in batches:
        output = objective(batch, totals)
        replicas = 1 if ranks is None else ranks.replication_factor
        (output.loss if replicas == 1 else output.loss / replicas).backward()
        if ranks is not None:
            ranks.backward_done()
        parts.append(output.metrics)
        del output  # or the next micro-batch would be computed beside all that this one's graph still holds
    return StepOutput(metrics=metrics.add(parts), num_tokens=sum(batch.num_tokens for batch in batches))
