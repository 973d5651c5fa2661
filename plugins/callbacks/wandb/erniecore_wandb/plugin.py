"""The plugin object of the callback for Weights & Biases. Light: wandb is imported when a run starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from erniecore_curves import CurvesConfig, CurvesPlugin, Writer

from erniecore.api import Field

if TYPE_CHECKING:
    from erniecore.api.callback import RunView


class Config(CurvesConfig):
    """What is logged where."""

    directory: str = Field("wandb", min_length=1, description="Log directory, inside the run directory.")
    mode: Literal["offline", "online"] = Field(
        "offline", description="`online` sends to the server of the account of `wandb login`; `offline` asks no server."
    )
    project: str = Field("erniecore", min_length=1, description="Project that the run belongs to.")
    entity: str = Field("", description="User or team that owns the project; empty: the default of the account.")


class Wandb(CurvesPlugin):
    """Writes a run's curves for Weights & Biases."""

    name = "wandb"
    summary = "loss, learning rate, speed and evaluation curves for Weights & Biases"
    Config = Config
    package = "wandb"
    expected_failures = {
        "callback_keeps_runs_apart": "logs of wandb's own beside its file tell of other runs of the process"
    }

    def open(self, run: RunView, config: Any) -> Writer:
        """One more run of wandb, in the group of this run."""
        from erniecore_wandb.writer import WandbRun

        return WandbRun(run, config)


plugin = Wandb()
