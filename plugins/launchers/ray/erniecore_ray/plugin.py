"""The plugin object of the launcher ``ray``. Light: ray is imported when a run starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.api import ConfigError, Plugin, hookimpl
from erniecore_ray.config import RayConfig

if TYPE_CHECKING:
    from erniecore.api.launcher import Launcher


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
