"""AdamW over named parameters. Not a schedule: the learning rate of each step comes from outside.

    m ← β₁ m + (1 − β₁) g      v ← β₂ v + (1 − β₂) g²
    θ ← θ (1 − η r λ) − η r · (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)         Loshchilov & Hutter 2019, algorithm 2

r is the parameter's own factor of the learning rate η (layer-wise decay, LoRA+), λ the weight decay (0 for vectors).

Why not ``paddle.optimizer.AdamW``: its state is keyed by generated names (``linear_2.w_0``) that change when any
other layer is made first, and it keeps both β powers per parameter. The operator ``erniecore_ops.adamw`` (the same fused
in-place kernel, or an installed one for all tensors at once) is called here with moments under structured names and the
powers computed from the number of updates, so the state is two arrays per parameter and one integer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import paddle
from erniecore_ops.adamw import Terms, adamw_

from erniecore.config.adamw import AdamWConfig
from erniecore.engine.optimizers.slots import ParameterSlot
from erniecore.types.optimizer import Optimizer, TrainedParameter

if TYPE_CHECKING:
    from erniecore.types.model import Tensor


class AdamW(Optimizer):
    """State per parameter: ``first`` and ``second``, its moments.

    Args:
        parameters: what is trained; at least one. config: decay of the moments, their dtype, where they lie.
    """

    slots: Sequence[ParameterSlot]

    def __init__(self, parameters: Sequence[TrainedParameter], config: AdamWConfig) -> None:
        self.config = config
        self.slots = [
            ParameterSlot(given, ("first", "second"), config.moments, offload=config.offload) for given in parameters
        ]

    def step(self, learning_rate: float, scale: float = 1.0) -> None:
        """Update every parameter that has a gradient, all of them in one call of the operator; with offloaded state one after
        the other."""
        self.num_updates += 1
        c, slots = self.config, [(slot, grad) for slot in self.slots if (grad := slot.gradient) is not None]
        # powers in float64, rounded where they are used, are the same after a resume
        terms = Terms(c.beta1, c.beta2, c.epsilon, c.beta1**self.num_updates, c.beta2**self.num_updates, scale)
        with paddle.no_grad():
            if not c.offload:
                self.checked = self._update(slots, learning_rate, terms)
                return
            self.checked = paddle.zeros([])
            for slot, gradient in slots:
                with slot.state_on(gradient.place):
                    self.checked = self.checked + self._update([(slot, gradient)], learning_rate, terms)

    def _update(self, slots: Sequence[tuple[ParameterSlot, Tensor]], learning_rate: float, terms: Terms) -> Tensor:
        checked = adamw_(
            [slot.target for slot, _ in slots],
            [gradient for _, gradient in slots],
            [slot.state["first"] for slot, _ in slots],
            [slot.state["second"] for slot, _ in slots],
            [learning_rate * slot.given.factor for slot, _ in slots],
            [slot.given.weight_decay for slot, _ in slots],
            terms,
        )
        for slot, _ in slots:
            slot.write_back()
        return checked
