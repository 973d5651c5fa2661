"""A session of a run as a run of wandb. wandb's own process writes the file, and ends it also when this process is killed.

wandb takes steps in rising order only and cannot take back what was logged, so each session of a run that was resumed is a run of
its own; the sessions have one group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import wandb
from erniecore_curves import Writer, session, undisturbed

from erniecore.api import EnvironmentFault

if TYPE_CHECKING:
    from erniecore.api.callback import RunView
    from erniecore_wandb.config import Config


class WandbRun(Writer):
    """An open run of wandb.

    Raises:
        EnvironmentFault: the server did not take it; online only.
        OSError: the directory cannot be made.
    """

    def __init__(self, run: RunView, config: Config) -> None:
        directory = run.out / config.directory
        directory.mkdir(parents=True, exist_ok=True)
        # nothing but what the run reports: no console, code, packages, commands or figures of the machine
        settings = wandb.Settings(
            mode=config.mode, silent=True, console="off", disable_git=True, disable_code=True, save_code=False,
            x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True, x_save_requirements=False,
        )  # fmt: skip
        try:
            with undisturbed():
                self._run = wandb.init(
                    project=config.project,
                    entity=config.entity or None,
                    name=session(run),
                    group=run.out.name,
                    dir=str(directory),
                    config=json.loads(run.settings.model_dump_json()),
                    settings=settings,
                    reinit="create_new",
                )
        except wandb.Error as error:
            fix = "`wandb login`, or callbacks.wandb.mode=offline and `wandb sync` later"
            message = "wandb could not begin a run"
            raise EnvironmentFault(message, where="callbacks.wandb", found=str(error), fix=fix) from error

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """A row of wandb; rows of one step are joined."""
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """Nothing is left to do: what was logged is wandb's process's, which outlives this one."""

    def close(self) -> None:
        """End the run. Online, wait until wandb has sent everything; offline, wandb's process may write its last records a moment
        later, and this process waits for it before it ends."""
        with undisturbed():
            self._run.finish()
