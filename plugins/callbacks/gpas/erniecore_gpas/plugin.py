"""The callback ``gpas``: clips the gradients of the gates of the residual stream, and reports the gates. Light."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from erniecore.api import Field, Plugin, Section, hookimpl

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore.api.callback import RunView


class GatesConfig(Section):
    """What happens to gates beside their update."""

    gradient_clip: float = Field(
        0.0,
        ge=0,
        description="Clip the gradient of each gate to this absolute value (the paper: 0.01 where gates jumped); 0: never.",
    )


class Gates(Plugin):
    """For models with `model.gpas`; says nothing of others."""

    kind = "callback"
    name = "gpas"
    summary = "clips the gradients of GPAS gates, and reports how far they scale the residual stream down"
    Config = GatesConfig

    @hookimpl
    def ernie_gradients(self, run: RunView, gradients: Mapping[str, Tensor]) -> None:
        """Elementwise, of sums over all ranks: every layout clips what one process does."""
        config: GatesConfig = run.settings.callbacks[self.name]
        if config.gradient_clip > 0:
            from erniecore_ernie45.residual import clip_gates

            clip_gates(gradients, config.gradient_clip)

    @hookimpl
    def ernie_collect_metrics(self, run: RunView) -> Mapping[str, float]:
        """Of the layers that the main rank has."""
        from erniecore_ernie45.residual import gate_metrics

        return gate_metrics(run.model) if run.is_main and run.model is not None else {}


plugin = Gates()
