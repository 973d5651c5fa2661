"""Muon, momentum orthogonalized by Newton-Schulz, for the matrices of hidden layers; AdamW for all other parameters.

    m ← μ m + g        u = g + μ m (Nesterov), else m        O = NewtonSchulz(u)
    θ ← θ (1 − η r λ) − η r s O

η is the learning rate, r the parameter's own factor of it, λ the decoupled weight decay. The scale s for a weight W [in, out]:

* ``original``: sqrt(max(1, out / in)). Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024).
* ``match-rms-adamw``: 0.2 sqrt(max(in, out)), with which the root mean square of an update is that of AdamW, about 0.2.
  Liu et al., "Muon is Scalable for LLM Training" (2025), arXiv:2502.16982, which also adds the weight decay.

(Both give their rules for weights [out, in]; ours are [in, out], whose orthogonalization is the transpose of theirs.)

Where a rank has a shard of a matrix or of its momentum, u is gathered first: O is of the full matrix, and the rank applies its
shard of it. A stack of experts is a batch of matrices; ranks that have whole experts gather none of the others'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import sqrt

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore.api.adamw import AdamW, ParameterSlot
from erniecore.api.ops import square_sum
from erniecore.api.optimizer import Optimizer, ParameterRole, ProcessGroup, ShardSpec, TrainedParameter
from erniecore_muon.config import MuonConfig, is_matrix
from erniecore_muon.newton_schulz import orthogonalized


class Muon(Optimizer):
    """State per matrix: ``momentum``. Of all other parameters: AdamW's.

    Args:
        parameters: what is trained. ranks: through which full matrices are gathered.
    """

    slots: Sequence[ParameterSlot]

    def __init__(self, parameters: Sequence[TrainedParameter], config: MuonConfig, ranks: ProcessGroup) -> None:
        self.config, self.ranks = config, ranks
        ours = {g.name for g in parameters if is_matrix(config, g.name, g.role, g.shard_spec.shape)}
        self.adamw = AdamW([given for given in parameters if given.name not in ours], config)
        self.matrices = [
            ParameterSlot(given, ("momentum",), config.moments, offload=config.offload)
            for given in parameters
            if given.name in ours
        ]
        by_name = {slot.name: slot for slot in chain(self.matrices, self.adamw.slots)}
        self.slots = [by_name[given.name] for given in parameters]

    def step(self, learning_rate: float, scale: float = 1.0) -> None:
        """Matrices one after the other, in the same order on all ranks; then AdamW."""
        self.adamw.num_updates = self.num_updates
        self.checked = paddle.zeros([])
        with paddle.no_grad():
            for slot in self.matrices:
                with slot.state_on(slot.parameter.place):
                    self._update(slot, learning_rate * slot.given.factor, scale)
                    self.checked += square_sum([slot.target, slot.state["momentum"]])
        self.adamw.step(learning_rate, scale)
        if self.adamw.checked is not None:
            self.checked += self.adamw.checked
        self.num_updates += 1

    def _update(self, slot: ParameterSlot, rate: float, scale: float) -> None:
        gradient, target = slot.gradient, slot.target
        # a rank without a gradient, or without elements, takes part in the gathering
        own = paddle.zeros(target.shape, "float32") if gradient is None else gradient.astype("float32") * scale
        momentum = slot.state["momentum"].astype("float32") * self.config.momentum + own.reshape(target.shape)
        paddle.assign(momentum.astype(slot.state["momentum"].dtype), output=slot.state["momentum"])
        update = own.reshape(target.shape) + self.config.momentum * momentum if self.config.nesterov else momentum
        step = self._direction(update, slot.given)
        if target.size:
            decayed = target * (1 - rate * slot.given.weight_decay)
            paddle.assign(decayed - rate * step.reshape(target.shape), output=target)
            slot.write_back()

    def _direction(self, update: Tensor, given: TrainedParameter) -> Tensor:
        """This rank's shard of s O, from its shard of u."""
        spec = matrices_of(given)
        full = update if spec.is_full else self.ranks.gather(update, spec)
        inputs, outputs = spec.shape[-2:]
        full = orthogonalized(full.reshape(list(spec.shape)), self.config.newton_schulz_steps, self._dtype(given))
        mine: Tensor = spec.take(full)
        return mine * scale_of(self.config.adjust_lr, inputs, outputs)

    def _dtype(self, given: TrainedParameter) -> str:
        """In which a matrix is orthogonalized."""
        if self.config.newton_schulz_dtype != "auto":
            return self.config.newton_schulz_dtype
        low = given.parameter.dtype == paddle.bfloat16 and not given.parameter.place.is_cpu_place()
        return "bfloat16" if low else "float32"


def matrices_of(given: TrainedParameter) -> ShardSpec:
    """What must be gathered for full matrices: the state's shard of the parameter, or where ranks hold whole experts, of the
    stack of these."""
    spec = given.state_spec
    if given.role is not ParameterRole.EXPERTS or spec.count == 1 or spec.axis != 0:
        return spec
    shape = (spec.shape[0] // spec.count, *spec.shape[1:])
    return replace(spec, shape=shape, index=0, count=1)


def scale_of(rule: str, inputs: int, outputs: int) -> float:
    """The factor s of an orthogonalized update of a weight [inputs, outputs]."""
    if rule == "original":
        return sqrt(max(1.0, outputs / inputs))
    return 0.2 * sqrt(max(inputs, outputs))
