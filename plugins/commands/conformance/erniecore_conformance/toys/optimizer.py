"""A good optimizer at toy size: gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from erniecore.api import Field, hookimpl
from erniecore.api.optimizer import OptimizerConfig, OptimizerPlugin, ParameterSpec, StateBytes, TrainedParameter

if TYPE_CHECKING:
    from erniecore.api.optimizer import Optimizer


class ToyOptimizerConfig(OptimizerConfig):
    """Settings of SGD with momentum."""

    momentum: float = Field(0.5, ge=0, lt=1, description="Decay of the momentum.")


class ToyOptimizerPlugin(OptimizerPlugin):
    """Builds SGD with momentum."""

    name = "toy"
    summary = "gradient descent with momentum"
    Config = ToyOptimizerConfig

    @hookimpl
    def ernie_build_optimizer(self, config: ToyOptimizerConfig, parameters: Sequence[TrainedParameter]) -> Optimizer:
        """An optimizer with an elementwise update."""
        from erniecore_conformance.toys.paddle_optimizer import Momentum

        return Momentum(parameters, config.momentum)

    @hookimpl
    def ernie_optimizer_bytes(self, parameters: Sequence[ParameterSpec]) -> Sequence[StateBytes]:
        """One float32 tensor, and a master."""
        sizes = [4 * prod(p.shape) for p in parameters]
        return [StateBytes(n, 0 if p.dtype == "float32" else n) for p, n in zip(parameters, sizes, strict=True)]
