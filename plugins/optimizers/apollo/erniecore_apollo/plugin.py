"""The plugin object of the optimizer ``apollo``, and its settings."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Literal

from erniecore.api import Field, hookimpl
from erniecore.api.optimizer import (
    AdamWConfig,
    OptimizerPlugin,
    ParameterRole,
    ParameterSpec,
    ProcessGroup,
    StateBytes,
    TrainedParameter,
    adamw_bytes,
)
from erniecore.api.planning import BYTES

if TYPE_CHECKING:
    from erniecore.api.optimizer import Optimizer

#: whose gradients may be projected; AdamW updates the rest
MATRICES = frozenset({ParameterRole.MATRIX, ParameterRole.EXPERTS})


class ApolloConfig(AdamWConfig):
    """APOLLO for the matrices of hidden layers. `beta1`, `beta2`, `epsilon` and `moments` are those of the projected gradient,
    and AdamW's for all other parameters."""

    rank: int = Field(
        256,
        ge=1,
        description="Rank of the projected gradient; matrices that have no more rows or columns are updated by AdamW. The paper "
        "has a quarter of the width, and 1 with `scaling=tensor` (APOLLO-Mini).",
    )
    period: int = Field(200, ge=1, description="Steps after which gradients are projected by other random numbers.")
    scaling: Literal["channel", "tensor"] = Field(
        "channel", description="Whether each row or column of a gradient has a factor of its own, or a matrix one."
    )
    factor: float = Field(
        1.0,
        gt=0,
        description="Multiplies the updates of matrices: the root of `scale` of the authors' code, which has 1 with "
        "`channel`, and 128 with `tensor` and rank 1.",
    )
    growth: float = Field(
        1.01,
        ge=1,
        description="How much larger the norm of an update may be than that of the last one; larger ones are shrunk.",
    )
    seed: int = Field(0, ge=0, description="Of the random numbers that project.")

    def projects(self, shape: Sequence[int], role: ParameterRole) -> bool:
        """Whether the gradient of a parameter is projected; ``shape``: of the full one."""
        return role in MATRICES and min(shape[-2:]) > self.rank


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
