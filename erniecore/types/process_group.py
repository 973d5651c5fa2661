"""The process group of a run and the shards of its tensors. A parallel plugin implements the group; with one process it is
trivial. Imports neither paddle nor numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from erniecore.types.model import Tensor
    from erniecore.types.samples import Array


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """Which shard of a full tensor a rank has: the tensor is split evenly along one axis, and of the flattened result the rank
    may have a range.

    Attributes:
        shape: of the full tensor.
        axis, index, count: this rank has split ``index`` of ``count`` along ``axis``; count 1: not split.
        flat: (start, stop) in the flattened split; ``None``: all of it.
        name: of the parameter, by which the strategy finds the ranks with the other shards.
    """

    shape: tuple[int, ...]
    axis: int = 0
    index: int = 0
    count: int = 1
    flat: tuple[int, int] | None = None
    name: str = ""

    @property
    def is_full(self) -> bool:
        """Whether the shard is the full tensor."""
        return self.count == 1 and self.flat is None

    def take(self, array: Array) -> Array:
        """This rank's shard of the full ``array``; a flat range is returned as a vector."""
        if self.count > 1:
            size = array.shape[self.axis] // self.count
            array = array[(slice(None),) * self.axis + (slice(self.index * size, (self.index + 1) * size),)]
        return array if self.flat is None else array.reshape(-1)[self.flat[0] : self.flat[1]]


class ParameterState(Protocol):
    """Optimizer state of one parameter; an optimizer's own class may add attributes.

    Attributes:
        name: of the parameter, as the model has it.
        parameter: the tensor on this rank.
        part: (start, stop) of the flattened parameter that this rank updates and has state for; ``None``: all of it.
        reduced: the reduced gradient of ``part``, set by a strategy that shards gradients.
        whole: names of state that is no tensor of ``part``: of any shape, and alike on all ranks with the parameter.
    """

    name: str
    parameter: Tensor
    part: tuple[int, int] | None
    reduced: Tensor | None
    whole: frozenset[str]

    @property
    def gradient(self) -> Tensor | None:
        """Gradient of ``part`` that the update reads; ``None`` where this rank updates nothing."""
        ...

    def state_tensors(self) -> Mapping[str, Tensor]:
        """``<parameter>.<state>`` -> tensor of ``part``, for checkpoints; the same names at every step."""
        ...


class ProcessGroup(Protocol):
    """All processes of a run, opened after the device. All ranks call every method in the same order.

    Attributes:
        rank, size: this process; the number of processes.
        counts: whether sums over the batch include this rank; of the ranks that compute the same sequences, one is included.
        replication_factor: number of ranks that compute the same loss from activations that they share. The gradient of a
            parameter is the sum over these ranks, so each of them divides its loss by this factor.
    """

    rank: int
    size: int
    counts: bool
    replication_factor: int

    @property
    def waited(self) -> float:
        """Seconds that this rank has spent in collectives so far, most of them waiting; 0 where that is not measured. The rest of
        its time it computed."""
        return 0.0

    @property
    def waiting(self) -> str:
        """What this rank is waiting for and for which ranks, as text; ``""`` if it is not waiting or that is not known."""
        ...

    def watch(self, alarm: Callable[[], None]) -> None:
        """Register ``alarm``, to be called before a wait for another rank times out."""
        ...

    def all_gather_object(self, value: Any) -> list[Any]:
        """The JSON values of all ranks, in rank order. Waits for all ranks, like a barrier.

        Raises ``EnvironmentFault`` that names the ranks missing after the timeout."""
        ...

    def shard_spec(self, name: str, shape: Sequence[int]) -> ShardSpec:
        """Which shard of parameter ``name`` this rank has; ``shape`` is that of the shard. No communication."""
        ...

    def update_range(self, name: str, shape: Sequence[int]) -> tuple[int, int] | None:
        """(start, stop) of the flattened parameter that this rank's optimizer updates; ``None``: all of it."""
        ...

    def gather_to_host(self, tensor: Tensor, spec: ShardSpec) -> Array:
        """The full tensor in host memory, on every rank with a shard of it."""
        ...

    def gather(self, tensor: Tensor, spec: ShardSpec) -> Tensor:
        """The full tensor on the device, on every rank with a shard of it; these ranks call it in the same tensor order."""
        ...

    def shard_ranks(self, spec: ShardSpec) -> Sequence[int]:
        """The ranks with the shards of this tensor, this rank included: those that gather together. No communication."""
        ...

    def broadcast(self, array: Array | None, dtype: str, shape: Sequence[int], source: int) -> Array:
        """The array of rank ``source``, on every rank; bfloat16 as its bits, ``dtype`` as Paddle names it."""
        ...

    def attach(self, slots: Sequence[ParameterState]) -> None:
        """Called once, after the optimizer is built and before its state is loaded."""
        ...

    def backward_done(self) -> None:
        """Called after the backward pass of each micro-batch, equally often on all ranks."""
        ...

    def reduce_gradients(self, slots: Sequence[ParameterState]) -> None:
        """Called after all micro-batches: sum the gradients of ``slots`` over the ranks with different sequences."""
        ...

    def counts_parameter(self, name: str) -> bool:
        """Whether the global gradient norm includes this rank's Σ g² of a parameter; each element is included exactly once."""
        ...

    def updated(self, slots: Sequence[ParameterState]) -> None:
        """Called after an update: copy the ranges that other ranks updated into the parameters."""
        ...

    def attach_model(self, model: Any, objective: Any) -> None:
        """Called once, after model and objective are built, so that their sums over tokens are summed over ranks."""
        ...

    def close(self) -> None:
        """Called at the end of a run, also after an error; must not wait for other ranks."""
        ...
