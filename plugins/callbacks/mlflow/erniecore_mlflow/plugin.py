"""The plugin object of the MLflow callback. Light: mlflow is imported when a run starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

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
    no_reports: ClassVar[Mapping[str, str]] = {"MLFLOW_DISABLE_TELEMETRY": "true"}
    expected_failures = {"callback_closes_its_files": "MLflow keeps its database open until the process ends"}

    def open(self, run: RunView, config: Any) -> Writer:
        """One more run of MLflow."""
        from erniecore_mlflow.writer import TrackedRun

        return TrackedRun(run, config)


plugin = MLflow()
