"""The plugin object of the optimizer ``adamw8bit``."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from erniecore.api import hookimpl
from erniecore.api.optimizer import (
    OptimizerPlugin,
    ParameterSpec,
    StateBytes,
    TrainedParameter,
)
from erniecore_adamw8bit.config import AdamW8bitConfig

if TYPE_CHECKING:
    from erniecore.api.optimizer import Optimizer


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
