"""The plugin object of the VisualDL callback. Light: visualdl is imported when a run starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore_curves import CurvesConfig, CurvesPlugin, Writer

from erniecore.api import Field

if TYPE_CHECKING:
    from erniecore.api.callback import RunView


class Config(CurvesConfig):
    """What is logged where."""

    directory: str = Field("visualdl", min_length=1, description="Log directory, inside the run directory.")


class VisualDL(CurvesPlugin):
    """Writes a run's curves as VisualDL records."""

    name = "visualdl"
    summary = "loss, learning rate, speed and evaluation curves for VisualDL"
    Config = Config
    package = "visualdl"

    def open(self, run: RunView, config: CurvesConfig) -> Writer:
        """The log of this session of the run."""
        from erniecore_visualdl.writer import Records

        base = run.out / config.directory
        directory = base / f"from-step-{run.step:08d}" if run.step else base
        return Records(directory, run.step, run.settings.model_dump_json(indent=2))


plugin = VisualDL()
