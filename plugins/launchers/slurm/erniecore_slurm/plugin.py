"""The plugin object of the launcher ``slurm``. Light: nothing is started here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from erniecore.api import ConfigError, Plugin, hookimpl
from erniecore_slurm.config import SlurmConfig

if TYPE_CHECKING:
    from erniecore.api.launcher import Launcher


class SlurmPlugin(Plugin):
    """Ranks of a job of Slurm, started by one srun on all of its nodes."""

    kind = "launcher"
    name = "slurm"
    summary = "processes of a Slurm job, on all of its nodes; `ernie launch --to slurm` submits the job"
    Config = SlurmConfig

    @hookimpl
    def ernie_open_launcher(self, config: SlurmConfig) -> Launcher:
        from erniecore_slurm.launcher import SlurmLauncher

        if config.nodes != 1:
            raise ConfigError.at(
                "launcher.nodes", f"{config.nodes}, but the job says how many nodes it has; leave it out"
            )
        if not os.environ.get("SLURM_JOB_ID"):
            fault = (
                "slurm, but this is no job of Slurm (SLURM_JOB_ID is not set); `ernie launch --to slurm` submits one"
            )
            raise ConfigError.at("launcher.name", fault)
        return SlurmLauncher(config)


plugin = SlurmPlugin()
