"""The plugin object of the launcher ``local``. Light: nothing is started here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore import registry
from erniecore.builtin.local_launcher.config import LocalConfig
from erniecore.plugin import Plugin, hookimpl

if TYPE_CHECKING:
    from erniecore.types.launcher import Launcher


class LocalPlugin(Plugin):
    """Processes of this machine."""

    kind = "launcher"
    name = "local"
    summary = "processes of this machine; with several machines, the launcher `nodes`"
    Config = LocalConfig

    @hookimpl
    def ernie_open_launcher(self, config: LocalConfig) -> Launcher:
        from erniecore.builtin.local_launcher.launcher import LocalLauncher

        if config.nodes > 1:
            launcher: Launcher = registry.load("launcher", "nodes").ernie_open_launcher(config=config)  # type: ignore[attr-defined]
            return launcher
        return LocalLauncher(config)


plugin = LocalPlugin()
