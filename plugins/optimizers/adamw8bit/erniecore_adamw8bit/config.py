"""Settings of the optimizer ``adamw8bit``."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from erniecore.api import Field
from erniecore.api.optimizer import (
    OptimizerConfig,
    ParameterRole,
)

if TYPE_CHECKING:
    pass


class AdamW8bitConfig(OptimizerConfig):
    """AdamW with moments of 8 bits. Learning rate and weight decay are in `train`."""

    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment.")
    beta2: float = Field(0.999, ge=0, lt=1, description="Decay of the second moment.")
    epsilon: float = Field(1e-8, gt=0, description="Added to the root of the second moment.")
    block_size: int = Field(256, ge=16, description="Elements that share a scale.")
    min_size: int = Field(
        4096, ge=0, description="Parameters with fewer elements keep moments in float32; 4096 is that of bitsandbytes."
    )
    embeddings: bool = Field(
        False,
        description="Also the moments of embeddings and heads have 8 bits; the paper leaves them in 32, because their gradients "
        "are large and rare.",
    )

    def quantizes(self, shape: Sequence[int], role: ParameterRole) -> bool:
        """Whether the moments of a parameter have 8 bits; ``shape``: of the full one, so every layout has the same answer."""
        return prod(shape) >= self.min_size and (self.embeddings or role is not ParameterRole.EMBEDDING)
