"""The plugin object of the TensorBoard callback. Light: tensorboardX is imported when a run starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore_curves import CurvesConfig, CurvesPlugin, Writer

from erniecore.api import Field

if TYPE_CHECKING:
    from erniecore.api.callback import RunView


class Config(CurvesConfig):
    """What is logged where."""

    directory: str = Field("tensorboard", min_length=1, description="Log directory, inside the run directory.")


class TensorBoard(CurvesPlugin):
    """Writes a run's curves as TensorBoard event files."""

    name = "tensorboard"
    summary = "loss, learning rate, speed and evaluation curves for TensorBoard"
    Config = Config
    package = "tensorboardX"

    def open(self, run: RunView, config: CurvesConfig) -> Writer:
        """One more event file in the directory of the run."""
        from erniecore_tensorboard.writer import EventFile

        return EventFile(run.out / config.directory, run.step, run.settings.model_dump_json(indent=2))


plugin = TensorBoard()
