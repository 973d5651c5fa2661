"""What the processes of a run do together, and which part of a whole tensor one of them holds. The parallel plugin
implements it; with one process everything here is trivial. No paddle and no numpy at import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from erniecore.types.model import Tensor
    from erniecore.types.samples import Array


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a whole tensor that a rank holds: first cut evenly along ``axis``, then, flattened, a range of it.

    Attributes:
        shape: of the whole.
        axis, index, count: this rank has cut ``index`` of ``count`` along ``axis``; count 1: no cut.
        flat: (start, stop) of the flattened cut; ``None``: all of it.
        name: of the parameter, by which the strategy knows who holds the other parts.
    """

    shape: tuple[int, ...]
    axis: int = 0
    index: int = 0
    count: int = 1
    flat: tuple[int, int] | None = None
    name: str = ""

    @property
    def whole(self) -> bool:
        """Whether it is the tensor itself."""
        return self.count == 1 and self.flat is None

    def take(self, array: Array) -> Array:
        """This rank's part of the whole ``array``: the cut, or the flat range of it as a vector."""
        if self.count > 1:
            size = array.shape[self.axis] // self.count
            array = array[(slice(None),) * self.axis + (slice(self.index * size, (self.index + 1) * size),)]
        return array if self.flat is None else array.reshape(-1)[self.flat[0] : self.flat[1]]


class ParameterState(Protocol):
    """What an optimizer keeps for one parameter; an optimizer's own class may hold more.

    Attributes:
        name: of the parameter, as the model has it.
        parameter: the tensor here.
        part: (start, stop) of the flattened parameter that is updated here, for which alone there is state; ``None``: all.
        reduced: the reduced gradient of that part, where ranks keep no more of it; a strategy sets it.
    """

    name: str
    parameter: Tensor
    part: tuple[int, int] | None
    reduced: Tensor | None

    @property
    def gradient(self) -> Tensor | None:
        """The gradient that the update reads, of the part; ``None`` where nothing is updated here."""
        ...

    def state_tensors(self) -> Mapping[str, Tensor]:
        """``<parameter>.<state>`` -> tensor of the part; the same names at every step, for checkpoints."""
        ...


class Ranks(Protocol):
    """The processes of a run, opened after the device. Every method is called by all ranks in the same order.

    Attributes:
        rank, size: this process and how many there are.
        counts: whether this rank's share of sums over the batch counts; of ranks that compute the same rows, one does.
        alike: how many ranks compute this rank's loss, all of it, from activations that they share: each takes a part of
            its gradient, and the sum of what reaches a parameter on all of them is its gradient.
    """

    rank: int
    size: int
    counts: bool
    alike: int

    @property
    def waiting(self) -> str:
        """What this rank waits for now and for whom, as text; ``""`` when it does not, or when that is not known."""
        ...

    def watch(self, alarm: Callable[[], None]) -> None:
        """``alarm`` is to be called before this rank gives up waiting for another one."""
        ...

    def exchange(self, value: Any) -> list[Any]:
        """What every rank gave, in the order of ranks; JSON values. A meeting: waits until all are there.

        Raises ``EnvironmentFault`` that names the ranks which did not come in time."""
        ...

    def piece(self, name: str, shape: Sequence[int]) -> Piece:
        """Which part of parameter ``name`` this rank holds, given its shape here. No communication."""
        ...

    def share(self, name: str, shape: Sequence[int]) -> tuple[int, int] | None:
        """Range of the flattened parameter that this rank's optimizer updates; ``None``: all of it."""
        ...

    def whole(self, tensor: Tensor, piece: Piece) -> Array:
        """The whole tensor on the host of every rank that ``piece`` belongs to."""
        ...

    def gather(self, tensor: Tensor, piece: Piece) -> Tensor:
        """The full tensor on every rank that ``piece`` belongs to, where the shards are; those ranks call it together, in the
        same order of tensors."""
        ...

    def partners(self, piece: Piece) -> Sequence[int]:
        """The ranks that call :meth:`whole` together for a piece of this rank, itself among them. No communication."""
        ...

    def send(self, array: Array | None, dtype: str, shape: Sequence[int], source: int) -> Array:
        """The array of rank ``source``, on every rank; bits for bfloat16, ``dtype`` as Paddle names it."""
        ...

    def attach(self, slots: Sequence[ParameterState]) -> None:
        """Once, when the optimizer is made, before its state is loaded."""
        ...

    def backward_done(self) -> None:
        """After the backward pass of each micro-batch; all ranks have as many."""
        ...

    def reduce_gradients(self, slots: Sequence[ParameterState]) -> None:
        """After all micro-batches: gradients of the optimizer's ``slots`` are sums over the ranks that saw other rows."""
        ...

    def counts_parameter(self, name: str) -> bool:
        """Whether this rank's Σ g² of a parameter enters the global norm: over all ranks each element does so once."""
        ...

    def updated(self, slots: Sequence[ParameterState]) -> None:
        """After an update: bring the parts that other ranks updated into the parameters."""
        ...

    def adopt(self, model: Any, objective: Any) -> None:
        """Once, when model and objective are built: whatever they sum over tokens must be summed over ranks."""
        ...

    def close(self) -> None:
        """The end; also after an error, so it waits for nobody."""
        ...
