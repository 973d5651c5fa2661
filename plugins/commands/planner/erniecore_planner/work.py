"""What the memory of a planned run depends on: the work of one micro-batch, and the exact bytes of its states."""

from __future__ import annotations

from math import prod

from erniecore.api.planning import BYTES, REFERENCE, PlannedRun
from erniecore_planner.activations import Work
from erniecore_planner.memory import States


def work_of(run: PlannedRun) -> Work:
    """What activations depend on."""
    train, length, shapes = run.train, run.data.max_seq_len, run.adapter or {}
    return Work(
        tokens=train.batch_size * length,
        length=length,
        element=BYTES[train.precision],
        recompute=train.recompute,
        loss_chunk=train.loss_chunk,
        head_trained=run.adapter is None,
        ranks=sum(min(s) for s in shapes.values() if len(s) == 2) // 2,
        adapted_experts=any(len(s) == 3 for s in shapes.values()),
        masks=run.kernels.get("attention", REFERENCE) == REFERENCE,
        apart=run.kernels.get("cross_entropy", REFERENCE) == REFERENCE,
    )


def states_of(run: PlannedRun) -> States:
    """The exact part of the memory."""
    plan = run.plan
    sizes = [4 * prod(entry.shape) for entry in run.tensors if entry.trained]
    return States(
        resident=plan.memory - plan.gradients,
        gradients=plan.gradients,
        largest=0 if run.adapter is not None else max(sizes, default=0),
    )
