"""LISA: AdamW for what is in no numbered layer, and for γ layers that are chosen anew every K steps. Pan et al., "LISA: Layerwise
Importance Sampling for Memory-Efficient Large Language Model Fine-Tuning" (2024), arXiv:2403.17919, algorithm 1.

Layers that are not chosen have no gradients (``stop_gradient``), no moments and no float32 master. A layer that is chosen begins
with moments of zero and a master of its weights, and its steps are counted from there for the correction of bias; one that is
chosen again in the next period goes on with what it has. Embedding and head count all steps.

The layers change in :meth:`Lisa.clear_gradients`, when the last step of a period is complete on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import paddle  # noqa: TID253

from erniecore.api.adamw import ParameterSlot
from erniecore.api.ops import AdamWTerms, adamw_
from erniecore.api.optimizer import Optimizer, ProcessGroup, TrainedParameter
from erniecore_lisa.sampling import chosen, entered, layer_of, layers_of

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore_lisa.config import LisaConfig


class Lisa(Optimizer):
    """State per parameter that is trained now: ``first`` and ``second``, its moments.

    Args:
        parameters: what may be trained. ranks: of a pipeline each has some of the layers.

    Attributes:
        slots: of what is trained now, in the order of the model.
    """

    slots: Sequence[ParameterSlot]

    def __init__(self, parameters: Sequence[TrainedParameter], config: LisaConfig, ranks: ProcessGroup) -> None:
        self.config, self.parameters = config, tuple(parameters)
        names = ranks.all_gather_object([given.name for given in parameters])
        self.layers = layers_of(chain.from_iterable(names))
        self.slots = []
        self._choose()

    @property
    def active(self) -> frozenset[str]:
        """The layers that the next step trains."""
        period = self.num_updates // self.config.period
        return chosen(self.layers, self.config.layers, self.config.seed, period)

    def _choose(self) -> None:
        """Freeze and drop what is not trained from here on, make state for what is and was not."""
        active = self.active | {""}
        kept = {slot.name: slot for slot in self.slots if layer_of(slot.name) in active}
        self.slots = []  # what leaves is free before anything else is made
        for given in self.parameters:
            trained = layer_of(given.name) in active
            given.parameter.stop_gradient = not trained
            if trained:
                slot = kept.get(given.name)
                self.slots.append(slot if slot is not None else self._slot(given))
            else:
                given.parameter.grad = None

    def _slot(self, given: TrainedParameter) -> ParameterSlot:
        return ParameterSlot(given, ("first", "second"), self.config.moments, offload=self.config.offload)

    def _steps(self, name: str) -> int:
        """Updates of a parameter since its state began, with the present one."""
        layer, c = layer_of(name), self.config
        if not layer:
            return self.num_updates
        period = (self.num_updates - 1) // c.period
        return self.num_updates - c.period * entered(layer, self.layers, c.layers, c.seed, period)

    def step(self, learning_rate: float, scale: float = 1.0) -> None:
        """Update every parameter that has a gradient: one call of the operator for those with as many steps, with offloaded
        state one for each parameter."""
        self.num_updates += 1
        groups: dict[int, list[ParameterSlot]] = {}
        for slot in self.slots:
            if slot.gradient is not None:
                groups.setdefault(self._steps(slot.name), []).append(slot)
        self.checked = paddle.zeros([])
        with paddle.no_grad():
            for steps, slots in groups.items():
                for together in [[slot] for slot in slots] if self.config.offload else [slots]:
                    with together[0].state_on(together[0].parameter.place):
                        self.checked += self._update(together, learning_rate, scale, steps)

    def _update(self, slots: Sequence[ParameterSlot], learning_rate: float, scale: float, steps: int) -> Tensor:
        c = self.config
        checked: Tensor = adamw_(
            [slot.target for slot in slots],
            [slot.gradient for slot in slots],
            [slot.state["first"] for slot in slots],
            [slot.state["second"] for slot in slots],
            [learning_rate * slot.given.factor for slot in slots],
            [slot.given.weight_decay for slot in slots],
            AdamWTerms(c.beta1, c.beta2, c.epsilon, c.beta1**steps, c.beta2**steps, scale),
        )
        for slot in slots:
            slot.write_back()
        return checked

    def clear_gradients(self) -> None:
        """Drop all gradients; after the last step of a period the layers change."""
        super().clear_gradients()
        if self.num_updates % self.config.period == 0:
            self._choose()

    def resumed_at(self, num_updates: int) -> None:
        """Choose the layers that a checkpoint of this step has state for."""
        super().resumed_at(num_updates)
        self.slots = []
        self._choose()
