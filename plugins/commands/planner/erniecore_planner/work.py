"""What the memory of a planned run depends on: the work of one micro-batch, and the exact bytes of its states."""

from __future__ import annotations

from math import prod

from erniecore.api.planning import BYTES, REFERENCE, PlannedRun
from erniecore_planner.activations import Work
from erniecore_planner.memory import States


def work_of(run: PlannedRun) -> Work:
    """What activations depend on."""
    train, length, shapes = run.train, run.data.max_seq_len, run.adapter or {}
    tower, joint = learned_vision(run)
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
        patches=train.batch_size * patches_of_row(run),
        tower=tower,
        joint=joint,
    )


def patches_of_row(run: PlannedRun) -> int:
    """The most that a row has: ``data.max_patches``, and no more than its tokens stand for."""
    if run.shape is None or run.shape.vision is None:
        return 0
    most = run.shape.vision.patches * run.data.max_seq_len
    return min(most, run.data.max_patches) if run.data.max_patches else most


def learned_vision(run: PlannedRun) -> tuple[bool, bool]:
    """Whether tower and joint keep activations: below what is trained, nothing is kept."""
    if run.shape is None or run.shape.vision is None:
        return False, False
    names = [entry.name for entry in run.tensors if entry.trained] if run.adapter is None else list(run.adapter)
    tower = any(name.startswith(run.shape.vision.tower) for name in names)
    return tower, tower or any(name.startswith(run.shape.vision.joints) for name in names)


def states_of(run: PlannedRun) -> States:
    """The exact part of the memory."""
    plan = run.plan
    trained = [entry for entry in run.tensors if entry.trained]
    sizes = [4 * prod(entry.shape) for entry in trained]
    vision = run.shape.vision if run.shape is not None else None
    before = [prod(entry.shape) for entry in trained if vision is not None and entry.name.startswith(vision.tower)]
    share = 4 * sum(before) / max(1, sum(sizes)) if run.adapter is None else 0.0
    return States(
        resident=plan.memory - plan.gradients,
        gradients=plan.gradients,
        largest=0 if run.adapter is not None else max(sizes, default=0),
        after=round(plan.gradients * (1 - share)),
    )
