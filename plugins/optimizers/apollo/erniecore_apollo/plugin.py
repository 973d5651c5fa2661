"""The plugin object of the optimizer ``apollo``."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from erniecore.api import hookimpl
from erniecore.api.optimizer import (
    OptimizerPlugin,
    ParameterSpec,
    ProcessGroup,
    StateBytes,
    TrainedParameter,
    adamw_bytes,
)
from erniecore.api.planning import BYTES
from erniecore_apollo.config import ApolloConfig

if TYPE_CHECKING:
    from erniecore.api.optimizer import Optimizer


class ApolloPlugin(OptimizerPlugin):
    """Gradients of matrices, scaled by what Adam makes of their random projections; AdamW for all other parameters."""

    name = "apollo"
    summary = "APOLLO: gradients scaled by Adam on random projections of low rank, AdamW for the rest"
    Config = ApolloConfig

    @hookimpl
    def ernie_build_optimizer(
        self, config: ApolloConfig, parameters: Sequence[TrainedParameter], ranks: ProcessGroup
    ) -> Optimizer:
        """Full gradients are gathered through ``ranks`` where matrices or their updates are sharded. Raises ``ConfigError`` where
        ranks have experts of their own."""
        from erniecore_apollo.apollo import Apollo

        return Apollo(parameters, config, ranks)

    @hookimpl
    def ernie_optimizer_bytes(self, config: ApolloConfig, parameters: Sequence[ParameterSpec]) -> list[StateBytes]:
        """Two moments of the projected gradient, the projection and a norm; AdamW's of the rest."""
        return [
            StateBytes(_projected(config, spec.shape), size.master) if config.projects(spec.shape, spec.role) else size
            for spec, size in zip(parameters, adamw_bytes(config, parameters), strict=True)
        ]


def _projected(config: ApolloConfig, shape: Sequence[int]) -> int:
    *stack, rows, columns = shape
    small, large = sorted((rows, columns))
    one = 2 * BYTES[config.moments] * config.rank * large + 4 * config.rank * small + 4
    return prod(stack) * one


plugin = ApolloPlugin()
