"""The plugin object of the launcher ``nodes``. Light: nothing is started here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.api import Plugin, hookimpl
from erniecore.api.launcher import LocalConfig

if TYPE_CHECKING:
    from erniecore.api.launcher import Launcher


class NodesPlugin(Plugin):
    """Processes of several machines. ``local`` hands over to it where ``launcher.nodes`` is above 1."""

    kind = "launcher"
    name = "nodes"
    summary = "processes of several machines, with the same command on each"
    Config = LocalConfig

    @hookimpl
    def ernie_open_launcher(self, config: LocalConfig) -> Launcher:
        from erniecore_nodes.launcher import NodesLauncher

        return NodesLauncher(config)


plugin = NodesPlugin()
