"""Optimizers with one thing wrong. How each updates is in ``toys/paddle_optimizer.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from erniecore.api import hookimpl
from erniecore.api.optimizer import ParameterSpec, StateBytes, TrainedParameter
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.optimizer import ToyOptimizerConfig, ToyOptimizerPlugin

if TYPE_CHECKING:
    from erniecore.api.optimizer import Optimizer


class Changed(ToyOptimizerPlugin):
    """Builds another class of the module.

    Attributes:
        updates: name of the class.
    """

    updates: ClassVar[str]

    @hookimpl
    def ernie_build_optimizer(self, config: ToyOptimizerConfig, parameters: Sequence[TrainedParameter]) -> Optimizer:
        from erniecore_conformance.toys import paddle_optimizer

        optimizer: Optimizer = getattr(paddle_optimizer, self.updates)(parameters, config.momentum)
        return optimizer


class Uphill(Changed):
    """Adds what it must subtract."""

    updates = "Uphill"


class Forgetful(Changed):
    """Keeps state where no checkpoint finds it."""

    updates = "Forgetful"


class Restless(Changed):
    """Has a smallest learning rate."""

    updates = "Restless"


class FirstComeFirstServed(Changed):
    """Later parameters learn more slowly."""

    updates = "FirstComeFirstServed"


class Unclipped(Changed):
    """Does not scale gradients."""

    updates = "Unclipped"


class OneSpeed(Changed):
    """Ignores the parameters' own factors."""

    updates = "OneSpeed"


class PlansNoMasters(ToyOptimizerPlugin):
    """Forgets the float32 copies of weights of lower precision."""

    @hookimpl
    def ernie_optimizer_bytes(self, parameters: Sequence[ParameterSpec]) -> Sequence[StateBytes]:
        return [StateBytes(size.state) for size in super().ernie_optimizer_bytes(parameters)]


MUTANTS = (
    mutant("optimizer_decreases_a_convex_loss", Uphill),
    mutant("optimizer_state_round_trip_is_bit_equal", Forgetful),
    mutant("optimizer_rate_zero_changes_nothing", Restless),
    mutant("optimizer_ignores_the_order", FirstComeFirstServed),
    mutant("optimizer_scales_gradients", Unclipped),
    mutant("optimizer_applies_factors", OneSpeed),
    mutant("optimizer_plans_its_state", PlansNoMasters),
)
