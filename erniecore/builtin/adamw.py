"""``adamw``: the optimizer of a run that names none. The formula is in ``erniecore/engine/optimizers/adamw.py``."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from erniecore.config.adamw import AdamWConfig
from erniecore.plugin import OptimizerPlugin, hookimpl
from erniecore.types.optimizer import ParameterSpec, StateBytes
from erniecore.types.planning import BYTES

if TYPE_CHECKING:
    from erniecore.types.optimizer import Optimizer, TrainedParameter


class AdamWPlugin(OptimizerPlugin):
    """AdamW with a fused update of all parameters."""

    name = "adamw"
    summary = "AdamW: Adam with decoupled weight decay"
    Config = AdamWConfig

    @hookimpl
    def ernie_build_optimizer(self, config: AdamWConfig, parameters: Sequence[TrainedParameter]) -> Optimizer:
        """Elementwise, so every rank updates what it has."""
        from erniecore.engine.optimizers.adamw import AdamW

        return AdamW(parameters, config)

    @hookimpl
    def ernie_optimizer_bytes(self, config: AdamWConfig, parameters: Sequence[ParameterSpec]) -> list[StateBytes]:
        """Two moments, and a float32 master weight for every weight of lower precision."""
        return adamw_bytes(config, parameters)


def adamw_bytes(config: AdamWConfig, parameters: Sequence[ParameterSpec]) -> list[StateBytes]:
    """What AdamW keeps for each parameter."""
    return [
        StateBytes(2 * BYTES[config.moments] * prod(p.shape), 0 if p.dtype == "float32" else 4 * prod(p.shape))
        for p in parameters
    ]


plugin = AdamWPlugin()
