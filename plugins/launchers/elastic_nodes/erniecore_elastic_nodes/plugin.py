"""The plugin object of the launcher ``elastic-nodes``. Light: nothing is started here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.api import Plugin, hookimpl
from erniecore_elastic_nodes.config import ElasticNodesConfig

if TYPE_CHECKING:
    from erniecore.api.launcher import Launcher


class ElasticNodesPlugin(Plugin):
    """Processes of machines that come and go while a run goes on."""

    kind = "launcher"
    name = "elastic-nodes"
    summary = "processes of machines that come and go: the run goes on with those that are there"
    Config = ElasticNodesConfig

    @hookimpl
    def ernie_open_launcher(self, config: ElasticNodesConfig) -> Launcher:
        from erniecore_elastic_nodes.launcher import ElasticLauncher

        return ElasticLauncher(config)


plugin = ElasticNodesPlugin()
