"""Gradient descent with momentum, and the same with one thing wrong each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle  # noqa: TID253

from erniecore.api.adamw import ParameterSlot
from erniecore.api.optimizer import Optimizer, TrainedParameter


class Momentum(Optimizer):
    """m ← μ m + g; θ ← θ (1 − η λ) − η m. State: ``momentum``, float32."""

    slots: Sequence[ParameterSlot]

    def __init__(self, parameters: Sequence[TrainedParameter], momentum: float) -> None:
        self.momentum = momentum
        self.slots = [ParameterSlot(given, ("momentum",), "float32") for given in parameters]

    def step(self, learning_rate: float, scale: float = 1.0) -> None:
        """Update every parameter that has a gradient."""
        self.num_updates += 1
        with paddle.no_grad():
            for index, slot in enumerate(self.slots):
                if slot.gradient is not None:
                    self.update(index, slot, slot.gradient.astype("float32") * scale, learning_rate * slot.given.factor)

    def update(self, index: int, slot: ParameterSlot, gradient: Any, rate: float) -> None:
        """One parameter, the one of number ``index``."""
        slot.state["momentum"].set_value(self.momentum * slot.state["momentum"] + gradient)
        step = slot.target * (1 - rate * slot.given.weight_decay) - rate * slot.state["momentum"]
        paddle.assign(step, output=slot.target)
        slot.write_back()


class Uphill(Momentum):
    """Adds what it must subtract."""

    def update(self, index: int, slot: ParameterSlot, gradient: Any, rate: float) -> None:
        """Update in the wrong direction."""
        super().update(index, slot, -gradient, rate)


class Forgetful(Momentum):
    """Keeps a second average where no checkpoint finds it."""

    def __init__(self, parameters: Sequence[TrainedParameter], momentum: float) -> None:
        super().__init__(parameters, momentum)
        self.hidden: dict[str, Any] = {}

    def update(self, index: int, slot: ParameterSlot, gradient: Any, rate: float) -> None:
        """With the average of the last two gradients."""
        last = self.hidden.get(slot.name, gradient)
        self.hidden[slot.name] = gradient
        super().update(index, slot, 0.5 * (last + gradient), rate)


class Restless(Momentum):
    """Has a smallest learning rate."""

    def update(self, index: int, slot: ParameterSlot, gradient: Any, rate: float) -> None:
        """Never slower than that."""
        super().update(index, slot, gradient, max(rate, 1e-3))


class FirstComeFirstServed(Momentum):
    """Later parameters learn more slowly."""

    def update(self, index: int, slot: ParameterSlot, gradient: Any, rate: float) -> None:
        """Scale the update by the parameter's number."""
        super().update(index, slot, gradient, rate / (1 + 0.1 * index))


class Unclipped(Momentum):
    """Does not scale gradients."""

    def step(self, learning_rate: float, scale: float = 1.0) -> None:
        """As if nothing was clipped."""
        super().step(learning_rate)


class OneSpeed(Momentum):
    """All parameters have the same learning rate."""

    def update(self, index: int, slot: ParameterSlot, gradient: Any, rate: float) -> None:
        """Without their own factor."""
        super().update(index, slot, gradient, rate / slot.given.factor)
