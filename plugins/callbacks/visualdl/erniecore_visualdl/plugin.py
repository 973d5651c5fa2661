"""The plugin object of the VisualDL callback. Light: visualdl is imported when a run starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from erniecore.api import EnvironmentFault, Field, Plugin, Section, hookimpl, install_command

if TYPE_CHECKING:
    from erniecore.api.callback import RunView


class Config(Section):
    """What is logged where."""

    directory: str = Field("visualdl", min_length=1, description="Log directory, inside the run directory.")
    every: int = Field(1, ge=1, description="Log the metrics of every so many steps.")


class VisualDL(Plugin):
    """Writes a run's curves as VisualDL records; the settings that it reads are its own section of the run's."""

    kind = "callback"
    name = "visualdl"
    summary = "loss, learning rate, speed and evaluation curves for VisualDL"
    Config = Config

    @hookimpl
    def ernie_run_start(self, run: RunView) -> None:
        """Open the log; raises ``EnvironmentFault`` when visualdl is not installed."""
        if not run.is_main:
            return
        try:
            from erniecore_visualdl import writer
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "visualdl":
                raise
            raise EnvironmentFault(
                "the callback visualdl needs the package visualdl",
                next=install_command("visualdl", of="erniecore-visualdl"),
            ) from error
        writer.start(run, run.settings.callbacks[self.name])

    @hookimpl
    def ernie_event(self, run: RunView, event: Mapping[str, Any]) -> None:
        """Log the numbers of steps and evaluations."""
        writer = _loaded_writer()
        if writer is not None:
            writer.record(run, event)

    @hookimpl
    def ernie_run_end(self, run: RunView) -> None:
        """Flush and close the writer."""
        writer = _loaded_writer()
        if writer is not None:
            writer.end(run)


def _loaded_writer() -> Any:
    """The writer's module if a run has started; a run that failed to start must not fail again at its end."""
    return sys.modules.get("erniecore_visualdl.writer")


plugin = VisualDL()
