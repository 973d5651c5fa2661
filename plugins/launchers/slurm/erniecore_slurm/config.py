"""Settings of the launcher ``slurm``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.api import Field
from erniecore.api.launcher import LauncherConfig

if TYPE_CHECKING:
    pass


class SlurmConfig(LauncherConfig):
    """Section of the launcher ``slurm``."""

    nproc: int = Field(
        0, ge=0, description="Ranks of the job, on all of its nodes together; 0: as many as `parallel` needs."
    )
    srun: list[str] = Field([], description="Further options of srun, e.g. `--cpu-bind=cores`.")
