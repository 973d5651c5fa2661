"""What changes while a run trains: weights, optimizer state, averages, counters. What of it a checkpoint holds.
How checkpoints are written is ``saving.py``, how one is read again ``restore.py``.

There is no generator state: every random stream derives from (seed, purpose, step). The place in the data is the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from erniecore.engine.training.best_step import Best
from erniecore.engine.training.gather import LocalShard
from erniecore.engine.training.guards import StepGuard
from erniecore.types.optimizer import Optimizer
from erniecore.types.process_group import ProcessGroup, ShardSpec
from erniecore.types.run import Objective

if TYPE_CHECKING:
    from erniecore.engine.training.ema import Ema


@dataclass(eq=False)
class TrainState:
    """Everything that a step changes.

    Attributes:
        model: what is trained, a ``CausalLM``, as the parallel strategy made it.
        objective, optimizer: of the step. ema: moving average of the weights, if the run keeps one.
        guard: which gradient norms were accepted so far.
        adapted: only the trainable weights belong into a checkpoint, because the frozen base is read again.
        step, tokens, seconds: done so far, over all sessions of the run.
        best: of the evaluations. ended: why a callback wants training to end before its last step.
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
    best: Best = field(default_factory=Best)
    ended: str = ""

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
            **({"best": asdict(self.best)} if self.best.evaluated else {}),
            **({"ended": self.ended} if self.ended else {}),
        }


def checkpoint_groups(state: TrainState, ranks: ProcessGroup) -> dict[str, dict[str, LocalShard]]:
    """Everything that a checkpoint holds, by group: what this rank has of each tensor."""

    def shards(tensors: Mapping[str, Any]) -> dict[str, LocalShard]:
        return {name: LocalShard(tensor, ranks.shard_spec(name, tensor.shape)) for name, tensor in tensors.items()}

    optim = {}
    for slot in state.optimizer.slots:
        spec = ranks.shard_spec(slot.name, slot.parameter.shape)
        spec = spec if slot.part is None else replace(spec, flat=slot.part)
        for name, tensor in slot.state_tensors().items():
            whole = name.rpartition(".")[2] in slot.whole
            optim[name] = LocalShard(tensor, ShardSpec(tuple(tensor.shape)) if whole else spec)
    weights = dict(state.model.state_dict())
    if state.adapted:
        weights = {name: tensor for name, tensor in weights.items() if not tensor.stop_gradient}
    groups = {"model": shards(weights), "optim": optim}
    if state.ema is not None:
        groups["ema"] = shards(state.ema.state_tensors())
    if own := dict(state.objective.state_tensors()):
        groups["objective"] = shards(own)
    carried = state.objective.carried() if ranks.counts else {}
    if carried:
        arrays = {name: np.array(array) for name, array in carried.items()}
        groups["carried"] = {name: LocalShard(array, ShardSpec(array.shape)) for name, array in arrays.items()}
    return groups
