"""Settings of the launcher ``ray``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from erniecore.api import Field
from erniecore.api.launcher import LauncherConfig

if TYPE_CHECKING:
    pass


class RayConfig(LauncherConfig):
    """Section of the launcher ``ray``."""

    nproc: int = Field(0, ge=0, description="Ranks on all nodes together; 0: as many as `parallel` needs.")
    address: str = Field(
        "auto", description="Of the cluster: `auto` finds the one that this machine belongs to, or `$RAY_ADDRESS`."
    )
    cpus: float = Field(1.0, ge=0, description="CPUs that Ray sets aside for each rank.")
    resources: dict[str, float] = Field({}, description="Further resources of each rank, e.g. `{GPU: 1}`.")
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        "PACK", description="How Ray places the ranks: on few nodes, or on many."
    )
    wait: float = Field(600.0, gt=0, description="Seconds in which the cluster must have room, also after growing.")
