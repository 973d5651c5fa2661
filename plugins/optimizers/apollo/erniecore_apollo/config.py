"""Settings of the optimizer ``apollo``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from erniecore.api import Field
from erniecore.api.optimizer import (
    AdamWConfig,
    ParameterRole,
)

if TYPE_CHECKING:
    pass

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
