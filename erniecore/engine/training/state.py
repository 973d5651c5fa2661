"""What changes while a run trains: weights, optimizer state, averages, counters. What of it a checkpoint holds, and how it
is restored. How checkpoints are written is ``saving.py``.

There is no generator state: every random stream derives from (seed, purpose, step). The place in the data is the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from erniecore.checkpoint.reader import Checkpoint
from erniecore.engine.optimizers.state import load_exactly, load_state_arrays
from erniecore.engine.training.ema import Ema
from erniecore.engine.training.gather import LocalArrays, LocalShard, assign
from erniecore.engine.training.guards import StepGuard
from erniecore.types.optimizer import Optimizer
from erniecore.types.process_group import ProcessGroup, ShardSpec
from erniecore.types.run import Objective

if TYPE_CHECKING:
    pass


@dataclass(eq=False)
class TrainState:
    """Everything that a step changes.

    Attributes:
        model: what is trained, a ``CausalLM``, as the parallel strategy made it.
        objective, optimizer: of the step. ema: moving average of the weights, if the run keeps one.
        guard: which gradient norms were accepted so far.
        adapted: only the trainable weights belong into a checkpoint, because the frozen base is read again.
        step, tokens, seconds: done so far, over all sessions of the run.
    """

    model: Any
    objective: Objective
    optimizer: Optimizer
    ema: Ema | None
    guard: StepGuard
    adapted: bool
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def repeats(self) -> int:
        """How many steps in a row get the same batches; more than 1 where the objective asks for it."""
        return self.objective.repeats

    def counters(self) -> dict[str, Any]:
        """The part of ``state.json`` that changes from step to step."""
        return {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "num_updates": self.optimizer.num_updates,
            "guard": self.guard.state(),
        }


def checkpoint_groups(state: TrainState, ranks: ProcessGroup) -> dict[str, dict[str, LocalShard]]:
    """Everything that a checkpoint holds, by group: what this rank has of each tensor."""

    def shards(tensors: Mapping[str, Any]) -> dict[str, LocalShard]:
        return {name: LocalShard(tensor, ranks.shard_spec(name, tensor.shape)) for name, tensor in tensors.items()}

    optim = {}
    for slot in state.optimizer.slots:
        spec = ranks.shard_spec(slot.name, slot.parameter.shape)
        spec = spec if slot.part is None else replace(spec, flat=slot.part)
        optim.update({name: LocalShard(tensor, spec) for name, tensor in slot.state_tensors().items()})
    weights = dict(state.model.state_dict())
    if state.adapted:
        weights = {name: tensor for name, tensor in weights.items() if not tensor.stop_gradient}
    groups = {"model": shards(weights), "optim": optim}
    if state.ema is not None:
        groups["ema"] = shards(state.ema.state_tensors())
    if own := dict(state.objective.state_tensors()):
        groups["objective"] = shards(own)
    carried = state.objective.carried() if ranks.rank == 0 else {}
    if carried:
        arrays = {name: np.array(array) for name, array in carried.items()}
        groups["carried"] = {name: LocalShard(array, ShardSpec(array.shape)) for name, array in arrays.items()}
    return groups


def restore(state: TrainState, checkpoint: Checkpoint, ranks: ProcessGroup) -> None:
    """Continue where ``checkpoint`` was saved. All ranks together.

    Raises:
        CheckpointError: its tensors are not those of this run.
    """
    counters, groups = checkpoint.state, checkpoint_groups(state, ranks)
    groups.pop("carried", None)  # of the present step
    specs = assign(ranks, groups).specs
    own = {
        group: LocalArrays(checkpoint.require(group, {n: (s, d) for n, (d, s) in specs[group].items()}), members)
        for group, members in groups.items()
    }
    load_exactly({name: shard.tensor for name, shard in groups["model"].items()}, own["model"], "weights")
    load_state_arrays(state.optimizer, own["optim"], int(counters["num_updates"]))
    if state.ema is not None:
        state.ema.load_state_arrays(own["ema"])
    if "objective" in own:
        state.objective.load_state_arrays(own["objective"])
    if "carried" in checkpoint.tensors:
        state.objective.load_carried(dict(checkpoint.tensors["carried"].items()))
    state.step, state.tokens = int(counters["step"]), int(counters["tokens"])
    state.seconds = float(counters["seconds"])
    state.guard.load_state(counters["guard"])
