"""A session of a run as a run of MLflow, through its client alone: no state of the process, no autologging.

Without a server it is a SQLite database in the run directory. What was logged cannot be taken back, so each session of a run that
was resumed is a run of its own in the same experiment, with the tag ``erniecore.run``.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

from erniecore_curves import Writer, session, undisturbed
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from erniecore.api import EnvironmentFault
from erniecore.api.settings import flatten

if TYPE_CHECKING:
    from erniecore.api.callback import RunView
    from erniecore_mlflow.config import Config

#: what a name of a metric or a parameter may not have, and how many a call takes
_REFUSED = re.compile(r"[^\w.\- :/]")
_METRICS, _PARAMS = 1000, 100


class TrackedRun(Writer):
    """An open run of MLflow.

    Raises:
        EnvironmentFault: the server or the database did not take it.
        OSError: the directory cannot be made.
    """

    def __init__(self, run: RunView, config: Config) -> None:
        directory = run.out / config.directory
        directory.mkdir(parents=True, exist_ok=True)
        local = f"sqlite:///{(directory / 'mlflow.db').absolute()}"
        artifacts = None if config.tracking_uri else (directory / "artifacts").absolute().as_uri()
        try:
            with undisturbed():
                self._client = MlflowClient(tracking_uri=config.tracking_uri or local)
                found = self._client.get_experiment_by_name(config.experiment)
                experiment = (
                    found.experiment_id
                    if found is not None
                    else self._client.create_experiment(config.experiment, artifact_location=artifacts)
                )
                tags = {"erniecore.run": run.out.name}
                self._id = self._client.create_run(experiment, run_name=session(run), tags=tags).info.run_id
                self._settings(run)
        except MlflowException as error:
            where = config.tracking_uri or str(directory)
            message = "MLflow could not begin a run"
            raise EnvironmentFault(
                message, where=where, found=str(error), fix="callbacks.mlflow.tracking_uri"
            ) from error

    def _settings(self, run: RunView) -> None:
        rows = iter(flatten(json.loads(run.settings.model_dump_json())).items())
        while params := [Param(_REFUSED.sub("_", key), str(value)) for key, value in islice(rows, _PARAMS)]:
            self._client.log_batch(self._id, params=params)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """A metric per curve; a character that MLflow refuses becomes ``_``. It is in the database when this returns."""
        now, rows = int(time.time() * 1000), iter(values.items())
        while metrics := [Metric(_REFUSED.sub("_", name), v, now, step) for name, v in islice(rows, _METRICS)]:
            self._client.log_batch(self._id, metrics=metrics)

    def flush(self) -> None:
        """Nothing is left to do: each call of :meth:`log` is a transaction."""

    def close(self) -> None:
        """The run is over."""
        self._client.set_terminated(self._id)
