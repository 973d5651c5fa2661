"""The plugin object of the MLflow callback. Light: mlflow is imported when a run starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from erniecore_curves import CurvesPlugin, Writer

from erniecore_mlflow.config import Config

if TYPE_CHECKING:
    from erniecore.api.callback import RunView


class MLflow(CurvesPlugin):
    """Writes a run's curves for MLflow."""

    name = "mlflow"
    summary = "loss, learning rate, speed and evaluation curves for MLflow"
    Config = Config
    package = "mlflow"
    requirement = "mlflow-skinny"
    expected_failures = {"callback_closes_its_files": "MLflow keeps its database open until the process ends"}

    def open(self, run: RunView, config: Any) -> Writer:
        """One more run of MLflow."""
        from erniecore_mlflow.writer import TrackedRun

        return TrackedRun(run, config)


plugin = MLflow()
