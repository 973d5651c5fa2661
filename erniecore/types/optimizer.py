"""What an optimizer is: it gets the trainable parameters of this rank by name, keeps state for each, and updates them. The
schedule, clipping and the reduction of gradients are the engine's. No paddle at import.

State is kept per parameter and elementwise where it can be: a checkpoint then holds the full tensors under structured names,
and a run continues on another number of ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from erniecore.types.process_group import ParameterState, ShardSpec

if TYPE_CHECKING:
    from erniecore.types.model import Tensor


class ParameterRole(str, Enum):
    """What a parameter is in the model, by which optimizers treat it.

    ``MATRIX``: a 2-D weight [in, out] of a hidden layer. ``EXPERTS``: a stack [E, in, out] of such. ``EMBEDDING``: an
    embedding or an output head. ``OTHER``: norms, biases, routers, and whatever the model's layout says nothing of.
    """

    MATRIX = "matrix"
    EXPERTS = "experts"
    EMBEDDING = "embedding"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A trainable parameter before the model is built.

    Attributes:
        shape: of the full tensor. dtype: as Paddle names it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: ParameterRole


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes that an optimizer keeps for a full parameter. ``master``: of float32 copies of weights of lower precision."""

    state: int
    master: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TrainedParameter:
    """A trainable parameter as an optimizer gets it.

    Attributes:
        name: structured. parameter: the tensor on this rank.
        role: see :class:`ParameterRole`.
        shard_spec: which shard of the full parameter ``parameter`` is; ``shard_spec.shape`` is the full shape.
        part: (start, stop) of the flattened ``parameter`` that is updated here, for which alone there is state; ``None``: all.
        factor: of the learning rate: layer-wise decay, or an adapter's.
        weight_decay: 0 for vectors, norms and biases.
    """

    name: str
    parameter: Tensor
    role: ParameterRole
    shard_spec: ShardSpec
    part: tuple[int, int] | None = None
    factor: float = 1.0
    weight_decay: float = 0.0

    @property
    def state_spec(self) -> ShardSpec:
        """Which shard of the full state this rank keeps, for ``ProcessGroup.gather``."""
        return self.shard_spec if self.part is None else replace(self.shard_spec, flat=self.part)


class Optimizer(ABC):
    """Updates the parameters of a run, in place.

    Each step the engine calls in this order: ``ProcessGroup.reduce_gradients``, :meth:`step`, ``ProcessGroup.updated`` and
    :meth:`clear_gradients`. All ranks step together, so ``step`` may communicate; every rank then does so in the same order
    of parameters.

    Attributes:
        slots: the state of every trainable parameter, in the order of the model.
        num_updates: steps done so far; saved and restored by the engine. State beyond it must be in the slots' tensors.
        checked: float32 scalar of the last step, finite only if all that it wrote is. ``None``: the engine looks at it all.
    """

    slots: Sequence[ParameterState]
    num_updates: int = 0
    checked: Tensor | None = None

    @abstractmethod
    def step(self, learning_rate: float, scale: float = 1.0) -> None:
        """Update every parameter once and add 1 to ``num_updates``.

        Args:
            learning_rate: of this step; a parameter's own is this times its ``factor``. 0 changes no parameter.
            scale: gradients are multiplied by it first (clipping).
        """

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """(name, gradient) of every parameter that has one."""
        for slot in self.slots:
            if (gradient := slot.gradient) is not None:
                yield slot.name, gradient

    def clear_gradients(self) -> None:
        """Drop all gradients, so that their memory is free before the next forward pass."""
        for slot in self.slots:
            slot.reduced = None
            slot.parameter.grad = None  # clear_gradient would leave zeros, which look like a gradient

    def state_tensors(self) -> Mapping[str, Tensor]:
        """``<parameter>.<state>`` -> tensor, names that depend on the number of updates at most, each shaped like what is
        updated; a checkpoint overwrites them in place, and calls :meth:`restored`."""
        return {name: tensor for slot in self.slots for name, tensor in slot.state_tensors().items()}

    def resumed_at(self, num_updates: int) -> None:
        """Called before a checkpoint of so many updates is loaded; for state that is not there at every step."""
        self.num_updates = num_updates

    def restored(self, tensors: Mapping[str, Tensor]) -> None:
        """Called with the :meth:`state_tensors` that a checkpoint has overwritten; for state that is kept in another form."""

    def kept_tensors(self) -> Mapping[str, Tensor]:
        """What is kept in memory, under names that begin with ``<parameter>.``; :meth:`state_tensors` unless in another form."""
        return self.state_tensors()
