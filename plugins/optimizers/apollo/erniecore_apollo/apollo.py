"""APOLLO for the matrices of hidden layers, AdamW for all other parameters. Zhu et al., "APOLLO: SGD-like Memory, AdamW-level
Performance" (2024), arXiv:2412.05270, algorithm 1.

    R = P G                    P [r, m] of N(0, 1 / r), others every T steps
    M ← β₁ M + (1 − β₁) R      V ← β₂ V + (1 − β₂) R²        D = M / (√V + ε)
    s_j = ‖D_j‖ / (‖R_j‖ + 1e-8)                             one per column j, or one of the whole matrix (``scaling: tensor``)
    U = G diag(s), shrunk to at most γ times the norm of the last one (Chen et al., "Fira", 2024, arXiv:2410.01623)
    θ ← θ (1 − η r λ) − η r α √(1 − β₂ᵗ) / (1 − β₁ᵗ) U

The shorter side m of a gradient is the one that is projected; of a matrix with more inputs than outputs rows and columns swap.
η is the learning rate, r the parameter's own factor of it, λ the weight decay, which is decoupled (the authors' code decays after
the update). What is kept is of rank r: M, V, P and the norm of the last U.

P is a function of (``seed``, name, period, position) alone, by ``erniecore_ops.random_values``: a run that continues and every
rank make the same. Where a rank has a shard of a matrix or of its update, the gradient is gathered, every rank computes the same
low-rank state, and each applies its shard of U.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np
import paddle  # noqa: TID253
from erniecore_ops.random_values import Distribution, draw, table_of

from erniecore.api import ConfigError
from erniecore.api.adamw import AdamW, ParameterSlot
from erniecore.api.ops import square_sum
from erniecore.api.optimizer import Optimizer, ParameterRole, ProcessGroup, TrainedParameter

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore_apollo.config import ApolloConfig

#: added to norms that are divided by
_TINY = 1e-8
MOMENTS = ("first", "second")


class ProjectedSlot(ParameterSlot):
    """A matrix [m, n], or a stack of them, whose gradient is projected: ``first`` and ``second`` [r, n] or [m, r], and ``norm``
    [1, 1] of the last update, 0 at first.

    Attributes:
        axis: of the gradient that is projected, the shorter one. projection: P [r, m]; not saved.
    """

    __slots__ = ("axis", "config", "period", "projection")

    def __init__(self, given: TrainedParameter, config: ApolloConfig) -> None:
        super().__init__(given, (), "float32", offload=config.offload)
        *stack, rows, columns = given.shard_spec.shape
        self.config, self.axis = config, -2 if rows <= columns else -1
        small = [*stack, config.rank, columns] if self.axis == -2 else [*stack, rows, config.rank]
        made = {name: paddle.zeros(small, config.moments) for name in MOMENTS}
        made["norm"] = paddle.zeros([*stack, 1, 1])
        self.state |= {name: tensor.cpu() if config.offload else tensor for name, tensor in made.items()}
        self.whole = frozenset(made)
        self.project(0)

    def project(self, num_updates: int) -> None:
        """Take the projection of the step after so many."""
        self.period = num_updates // self.config.period
        *stack, _, _ = shape = self.given.shard_spec.shape
        key = f"{self.config.seed}/apollo/{self.name}/{self.period}"
        table = table_of(Distribution("normal", 0.0, 1 / sqrt(self.config.rank))).astype(np.float32)
        self.projection = paddle.to_tensor(draw(key, (*stack, self.config.rank, shape[self.axis]), table))


class Apollo(Optimizer):
    """State per projected matrix: see :class:`ProjectedSlot`. Of all other parameters: AdamW's.

    Args:
        parameters: what is trained. ranks: through which full gradients are gathered.
    Raises:
        ConfigError: a stack of experts is divided among ranks.
    """

    slots: Sequence[ParameterSlot]

    def __init__(self, parameters: Sequence[TrainedParameter], config: ApolloConfig, ranks: ProcessGroup) -> None:
        self.config, self.ranks = config, ranks
        projected = [given for given in parameters if config.projects(given.shard_spec.shape, given.role)]
        for given in projected:
            spec = given.shard_spec
            if given.role is ParameterRole.EXPERTS and spec.count > 1 and spec.axis == 0:
                message = "apollo needs all experts on every rank, and this layout divides them; choose muon or adamw"
                raise ConfigError.at("optimizer.name", message)
        self.matrices = [ProjectedSlot(given, config) for given in projected]
        names = {given.name for given in projected}
        self.adamw = AdamW([given for given in parameters if given.name not in names], config)
        by_name = {slot.name: slot for slot in chain(self.matrices, self.adamw.slots)}
        self.slots = [by_name[given.name] for given in parameters]

    def step(self, learning_rate: float, scale: float = 1.0) -> None:
        """Matrices one after the other, in the same order on all ranks; then AdamW."""
        self.adamw.num_updates = self.num_updates
        self.checked = paddle.zeros([])
        with paddle.no_grad():
            for slot in self.matrices:
                if slot.period != self.num_updates // self.config.period:
                    slot.project(self.num_updates)
                with slot.state_on(slot.parameter.place):
                    self._update(slot, learning_rate * slot.given.factor, scale)
                    self.checked += square_sum([slot.target, *(slot.state[name] for name in MOMENTS)])
        self.adamw.step(learning_rate, scale)
        if self.adamw.checked is not None:
            self.checked += self.adamw.checked
        self.num_updates += 1

    def kept_tensors(self) -> Mapping[str, Tensor]:
        kept = {f"{slot.name}.projection": slot.projection for slot in self.matrices}
        return {**self.state_tensors(), **kept}

    def _update(self, slot: ProjectedSlot, rate: float, scale: float) -> None:
        gradient, target, given = slot.gradient, slot.target, slot.given
        # a rank without a gradient, or without elements, takes part in the gathering
        own = paddle.zeros(target.shape) if gradient is None else gradient.astype("float32") * scale
        spec = given.state_spec
        full = own.reshape(target.shape) if spec.is_full else self.ranks.gather(own.reshape(target.shape), spec)
        update = spec.take(self._direction(slot, full.reshape(list(spec.shape))))
        if target.size:
            decayed = target * (1 - rate * given.weight_decay)
            paddle.assign(decayed - rate * update.reshape(target.shape), output=target)
            slot.write_back()

    def _direction(self, slot: ProjectedSlot, gradient: Tensor) -> Tensor:
        """α √(1 − β₂ᵗ) / (1 − β₁ᵗ) U of the full gradient; changes the state."""
        c, p, t = self.config, slot.projection, self.num_updates + 1
        low = paddle.matmul(p, gradient) if slot.axis == -2 else paddle.matmul(gradient, p, transpose_y=True)
        first = c.beta1 * slot.state["first"].astype("float32") + (1 - c.beta1) * low
        second = c.beta2 * slot.state["second"].astype("float32") + (1 - c.beta2) * low * low
        for name, moment in zip(MOMENTS, (first, second), strict=True):
            paddle.assign(moment.astype(c.moments), output=slot.state[name])
        axes = [slot.axis] if c.scaling == "channel" else [-2, -1]
        scaled = gradient * (_norm(first / (second.sqrt() + c.epsilon), axes) / (_norm(low, axes) + _TINY))
        norm, last = _norm(scaled, [-2, -1]), slot.state["norm"]
        shrink = paddle.where(last > 0, (norm / (last + _TINY)).clip(min=c.growth) / c.growth, paddle.ones_like(norm))
        paddle.assign(norm / shrink, output=slot.state["norm"])
        return scaled / shrink * (c.factor * sqrt(1 - c.beta2**t) / (1 - c.beta1**t))


def _norm(x: Tensor, axes: Sequence[int]) -> Tensor:
    root: Tensor = (x * x).sum(axis=list(axes), keepdim=True).sqrt()
    return root
