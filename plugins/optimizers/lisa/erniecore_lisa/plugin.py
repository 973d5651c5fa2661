"""The plugin object of the optimizer ``lisa``.

Why an optimizer, and neither an adapter nor a callback: nothing is added to the model, and what a callback may do is watch. What
LISA changes is which parameters are updated and what is kept for each, which is an optimizer's matter: its state is saved,
planned and sharded as that of any other, and goes when its layer goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from erniecore.api import ConfigError, hookimpl
from erniecore.api.optimizer import (
    OptimizerPlugin,
    ParameterSpec,
    ProcessGroup,
    StateBytes,
    TrainedParameter,
    adamw_bytes,
)
from erniecore_lisa.config import LisaConfig
from erniecore_lisa.sampling import chosen, layer_of, layers_of

if TYPE_CHECKING:
    from erniecore.api.optimizer import Optimizer


class LisaPlugin(OptimizerPlugin):
    """AdamW with layerwise sampling."""

    name = "lisa"
    summary = "LISA: AdamW for embedding, head and a few layers that are chosen anew every some steps"
    Config = LisaConfig

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """Raises ``ConfigError`` for an adapter, for an average of weights, and for a layout under which
        what is trained cannot change."""
        if settings.adapter is not None:
            message = "lisa trains layers of the model, which an adapter freezes; use adamw, or leave the adapter out"
            raise ConfigError.at("optimizer.name", message)
        if settings.train.ema:
            message = (
                "lisa trains other layers from time to time, and an average is kept of what is trained; set it to 0"
            )
            raise ConfigError.at("train.ema", message)
        for key in settings.parallel.fixes_trained():
            message = (
                "lisa works with 1: from 2 on, ranks hold on to the parameters that were trained first; or use apollo"
            )
            raise ConfigError.at(key, message)

    @hookimpl
    def ernie_build_optimizer(
        self, config: LisaConfig, parameters: Sequence[TrainedParameter], ranks: ProcessGroup
    ) -> Optimizer:
        """All ranks tell their layers through ``ranks``, for a pipeline divides them."""
        from erniecore_lisa.optimizer import Lisa

        return Lisa(parameters, config, ranks)

    @hookimpl
    def ernie_optimizer_bytes(self, config: LisaConfig, parameters: Sequence[ParameterSpec]) -> list[StateBytes]:
        """AdamW's of what is trained in the first period, nothing for the other layers."""
        active = chosen(layers_of(spec.name for spec in parameters), config.layers, config.seed, 0) | {""}
        return [
            size if layer_of(spec.name) in active else StateBytes(0, 0)
            for spec, size in zip(parameters, adamw_bytes(config, parameters), strict=True)
        ]


plugin = LisaPlugin()
