"""The state of a checkpoint into a run that was built like the one that saved it; its reverse is in ``state.py``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from erniecore.engine.arrays import Array
from erniecore.engine.optimizers.state import load_exactly, load_state_arrays
from erniecore.engine.training.best_step import Best
from erniecore.engine.training.gather import LocalShard, assign
from erniecore.engine.training.state import TrainState, checkpoint_groups
from erniecore.types.process_group import ProcessGroup

if TYPE_CHECKING:
    from erniecore_checkpoint.reader import Checkpoint


def restore(state: TrainState, checkpoint: Checkpoint, ranks: ProcessGroup) -> None:
    """Continue where ``checkpoint`` was saved. All ranks together.

    Raises:
        CheckpointError: its tensors are not those of this run.
    """
    counters = checkpoint.state
    state.optimizer.resumed_at(int(counters["num_updates"]))
    groups = checkpoint_groups(state, ranks)
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
    state.best, state.ended = Best(**counters.get("best", {})), counters.get("ended", "")


@dataclass(frozen=True)
class _Entry:
    shape: tuple[int, ...]


class LocalArrays(Mapping[str, Array]):
    """This rank's shards of a checkpoint's arrays; each is read on access, and only the range that is needed."""

    def __init__(self, arrays: Mapping[str, Array], members: Mapping[str, LocalShard]) -> None:
        self._arrays, self._members = arrays, members
        #: shapes without reading
        self.entries = {name: _Entry(tuple(shard.tensor.shape)) for name, shard in members.items()}

    def __getitem__(self, name: str) -> Array:
        return self._members[name].spec.take(self._arrays[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)
