"""The plugin object of the SwanLab callback. Light: swanlab is imported when a run starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from erniecore_curves import CurvesConfig, CurvesPlugin, Writer

from erniecore.api import Field

if TYPE_CHECKING:
    from erniecore.api.callback import RunView


class Config(CurvesConfig):
    """What is logged where."""

    directory: str = Field("swanlab", min_length=1, description="Log directory, inside the run directory.")
    mode: Literal["offline", "online"] = Field(
        "offline",
        description="`online` sends to the server of the account of `swanlab login`; `offline` asks no server.",
    )
    project: str = Field(
        "erniecore", min_length=1, max_length=100, pattern=r"^[0-9a-zA-Z_\-+.]+$", description="Project of the run."
    )
    workspace: str = Field("", description="User or organization; empty: the default of the account.")


class SwanLab(CurvesPlugin):
    """Writes a run's curves for SwanLab."""

    name = "swanlab"
    summary = "loss, learning rate, speed and evaluation curves for SwanLab"
    Config = Config
    package = "swanlab"
    expected_failures = {"callback_keeps_runs_apart": "swanlab has one experiment per process; a second one is refused"}

    def open(self, run: RunView, config: Any) -> Writer:
        """One more experiment of SwanLab, in the group of this run."""
        from erniecore_swanlab.writer import Experiment

        return Experiment(run, config)


plugin = SwanLab()
