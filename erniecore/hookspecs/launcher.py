"""Hooks of launchers. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.sections import Section
    from erniecore.types.launcher import Launcher


class LauncherHooks:
    """Called in the process of ``ernie run``, before paddle is imported; never in a rank."""

    @hookspec(firstresult=True)
    def ernie_open_launcher(self, config: Section) -> Launcher:
        """The launcher of a run. Starts nothing yet. ``config``: its section, a ``LauncherConfig``.

        Raises ``ConfigError`` for impossible nodes and addresses.

        Example::

            @hookimpl
            def ernie_open_launcher(self, config):
                return MyLauncher(config)
        """
