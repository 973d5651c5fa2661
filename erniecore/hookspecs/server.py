"""Hooks of servers. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.sections import Section


class ServerHooks:
    """One provider: the server that ``--backend`` names. Called outside a run."""

    @hookspec(firstresult=True)
    def ernie_serve(self, config: Section, directory: Path) -> int:
        """Serve the model in ``directory`` until stopped; returns the exit code.

        Example::

            @hookimpl
            def ernie_serve(self, config, directory):
                return run_server(directory, host=config.host, port=config.port)
        """
