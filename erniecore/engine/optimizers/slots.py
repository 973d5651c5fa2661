"""The state that an optimizer keeps for one parameter: tensors of the part of it that is updated on this rank, a float32
master of weights of lower precision, and where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import paddle

from erniecore.engine.arrays import dtype_name
from erniecore.types.optimizer import TrainedParameter

if TYPE_CHECKING:
    from erniecore.types.model import Tensor


class ParameterSlot:
    """One parameter with its state; see ``erniecore.types.process_group.ParameterState``.

    Args:
        given: the parameter. names: of its state tensors, zero at first, as large as what is updated here.
        dtype: of these. offload: they lie in the host's memory, and so does the master.

    Attributes:
        state: name -> tensor, with ``master`` where the parameter is not float32.
        reduced: the gradient of what is updated here, where the ranks keep no more of it.
        whole: names of state of another shape, which is alike on all ranks.
    """

    __slots__ = ("given", "name", "offload", "parameter", "part", "reduced", "state", "whole")

    def __init__(self, given: TrainedParameter, names: Sequence[str], dtype: str, *, offload: bool = False) -> None:
        self.given, self.name, self.parameter, self.part = given, given.name, given.parameter, given.part
        self.offload = offload
        self.reduced: Tensor | None = None
        self.whole: frozenset[str] = frozenset()
        shape = self.parameter.shape if self.part is None else [self.part[1] - self.part[0]]
        self.state: dict[str, Tensor] = {name: paddle.zeros(shape, dtype=dtype) for name in names}
        if dtype_name(self.parameter) != "float32":
            self.state["master"] = self.of(self.parameter.detach()).astype("float32")
        if offload:
            self.state = {name: tensor.cpu() for name, tensor in self.state.items()}

    def of(self, tensor: Tensor) -> Tensor:
        """The part of the parameter, or of its gradient, that is updated here; shares its memory."""
        return tensor if self.part is None else tensor.flatten()[self.part[0] : self.part[1]]

    @property
    def gradient(self) -> Tensor | None:
        """What the update reads; ``None`` where there is nothing to update."""
        if self.parameter.size == 0 or (self.part is not None and self.part[0] == self.part[1]):
            return None
        if self.reduced is not None:
            return self.reduced
        return None if self.parameter.grad is None else self.of(self.parameter.grad)

    @property
    def target(self) -> Tensor:
        """What is updated: the master, else the part of the parameter itself."""
        master = self.state.get("master")
        return self.of(self.parameter) if master is None else master

    def write_back(self) -> None:
        """The master's values, rounded, into the parameter; nothing without a master."""
        if (master := self.state.get("master")) is not None:
            own = self.of(self.parameter)
            paddle.assign(master.astype(own.dtype), output=own)

    def state_tensors(self) -> dict[str, Tensor]:
        return {f"{self.name}.{name}": tensor for name, tensor in self.state.items()}

    @contextmanager
    def state_on(self, place: Any) -> Iterator[None]:
        """State that lies in the host's memory is on ``place`` within the block; what has become of it goes back."""
        if not self.offload:
            yield
            return
        kept = self.state
        self.state = {name: tensor._copy_to(place, True) for name, tensor in kept.items()}
        yield
        for name, host in kept.items():
            host.copy_(self.state[name], True)
        self.state = kept
