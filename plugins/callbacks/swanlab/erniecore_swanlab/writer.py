"""A session of a run as an experiment of SwanLab, of which a process has one at a time.

What was logged cannot be taken back, so each session of a run that was resumed is an experiment of its own; the sessions have
one group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import swanlab
from erniecore_curves import Writer, session, undisturbed

from erniecore.api import EnvironmentFault

if TYPE_CHECKING:
    from erniecore.api.callback import RunView
    from erniecore_swanlab.config import Config


class Experiment(Writer):
    """An open experiment.

    Raises:
        EnvironmentFault: another one is open in this process, or the server did not take it.
        OSError: the directory cannot be made.
    """

    def __init__(self, run: RunView, config: Config) -> None:
        if swanlab.has_run():
            message = "another run of this process logs to SwanLab, which takes one at a time"
            raise EnvironmentFault(
                message, where="callbacks.swanlab", fix="start the runs one after the other, or as processes"
            )
        directory = run.out / config.directory
        directory.mkdir(parents=True, exist_ok=True)
        off = dict.fromkeys(("hardware", "runtime", "requirements", "git", "swanlab", "monitor"), False)
        # nothing but what the run reports: no console, packages, commands or figures of the machine
        settings = swanlab.Settings(
            interactive=False,
            probe=swanlab.Settings.Probe(**off),
            terminal=swanlab.Settings.Terminal(proxy_type="none"),
        )
        try:
            with undisturbed():
                self._run = swanlab.init(
                    mode=config.mode,
                    project=config.project,
                    workspace=config.workspace or None,
                    name=session(run),
                    group=run.out.name,
                    log_dir=str(directory),
                    config=json.loads(run.settings.model_dump_json()),
                    settings=settings,
                )
        except (swanlab.exceptions.ApiError, swanlab.exceptions.AuthenticationError, RuntimeError) as error:
            fix = "`swanlab login`, or callbacks.swanlab.mode=offline and `swanlab sync` later"
            message = "swanlab could not begin an experiment"
            raise EnvironmentFault(message, where="callbacks.swanlab", found=str(error), fix=fix) from error

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """A scalar per curve."""
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """swanlab's thread writes what was logged every second and a half; it offers no call that waits for it."""

    def close(self) -> None:
        """Wait until swanlab has written everything, or online has sent it."""
        with undisturbed():
            self._run.finish()
