"""The plugin object of the optimizer ``adamw8bit``, and its settings."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from erniecore.api import Field, hookimpl
from erniecore.api.optimizer import (
    OptimizerConfig,
    OptimizerPlugin,
    ParameterRole,
    ParameterSpec,
    StateBytes,
    TrainedParameter,
)

if TYPE_CHECKING:
    from erniecore.api.optimizer import Optimizer


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


class AdamW8bitPlugin(OptimizerPlugin):
    """AdamW whose moments are kept as one byte per element, with a scale per block."""

    name = "adamw8bit"
    summary = "AdamW with moments of 8 bits: blockwise dynamic quantization"
    Config = AdamW8bitConfig

    @hookimpl
    def ernie_build_optimizer(self, config: AdamW8bitConfig, parameters: Sequence[TrainedParameter]) -> Optimizer:
        """Every rank quantizes what it updates."""
        from erniecore_adamw8bit.optimizer import AdamW8bit

        return AdamW8bit(parameters, config)

    @hookimpl
    def ernie_optimizer_bytes(self, config: AdamW8bitConfig, parameters: Sequence[ParameterSpec]) -> list[StateBytes]:
        """Two bytes per element and two scales per block, or two moments in float32; a float32 master for every weight of lower
        precision."""
        return [
            StateBytes(_moments(config, spec), 0 if spec.dtype == "float32" else 4 * prod(spec.shape))
            for spec in parameters
        ]


def _moments(config: AdamW8bitConfig, spec: ParameterSpec) -> int:
    size = prod(spec.shape)
    if not config.quantizes(spec.shape, spec.role):
        return 8 * size
    return 2 * (size + 4 * -(-size // config.block_size))


plugin = AdamW8bitPlugin()
