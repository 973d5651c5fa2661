"""The plugin object of the callback for Weights & Biases. Light: wandb is imported when a run starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore_curves import CurvesPlugin, Writer

from erniecore_wandb.config import Config

if TYPE_CHECKING:
    from erniecore.api.callback import RunView


class Wandb(CurvesPlugin):
    """Writes a run's curves for Weights & Biases."""

    name = "wandb"
    summary = "loss, learning rate, speed and evaluation curves for Weights & Biases"
    Config = Config
    package = "wandb"
    no_reports: ClassVar[Mapping[str, str]] = {"WANDB_ERROR_REPORTING": "false"}
    expected_failures = {
        "callback_keeps_runs_apart": "logs of wandb's own beside its file tell of other runs of the process"
    }

    def open(self, run: RunView, config: Any) -> Writer:
        """One more run of wandb, in the group of this run."""
        from erniecore_wandb.writer import WandbRun

        return WandbRun(run, config)


plugin = Wandb()
