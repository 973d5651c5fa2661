"""The plugin object of the SwanLab callback. Light: swanlab is imported when a run starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from erniecore_curves import CurvesPlugin, Writer

from erniecore_swanlab.config import Config

if TYPE_CHECKING:
    from erniecore.api.callback import RunView


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
