"""The plugin object of the launcher ``ray``. Light: ray is imported when a run starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from erniecore.api import ConfigError, Field, Plugin, hookimpl
from erniecore.api.launcher import LauncherConfig

if TYPE_CHECKING:
    from erniecore.api.launcher import Launcher


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


class RayPlugin(Plugin):
    """Ranks as actors of a placement group, on the nodes that Ray chooses."""

    kind = "launcher"
    name = "ray"
    summary = "actors of a Ray cluster, on the nodes that Ray chooses"
    Config = RayConfig

    @hookimpl
    def ernie_open_launcher(self, config: RayConfig) -> Launcher:
        from erniecore_ray.launcher import RayLauncher

        if config.nodes != 1:
            raise ConfigError.at("launcher.nodes", f"{config.nodes}, but Ray chooses the nodes; leave it out")
        return RayLauncher(config)


plugin = RayPlugin()
