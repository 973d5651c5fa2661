"""The server ``fastdeploy``. Light: what starts processes is imported inside the hook."""

from __future__ import annotations

from pathlib import Path

from erniecore.api import Plugin, hookimpl
from erniecore_fastdeploy_server.config import FastDeployConfig


class FastDeployServer(Plugin):
    """FastDeploy's own server, started for one model directory."""

    kind = "server"
    name = "fastdeploy"
    summary = "starts FastDeploy's server for a model: checked, watched, probed and stopped"
    Config = FastDeployConfig

    @hookimpl
    def ernie_serve(self, config: FastDeployConfig, directory: Path) -> int:
        """Serve until a signal, or until FastDeploy ends.

        Raises:
            CheckpointError: a directory that FastDeploy would not read. UsageError: an address that needs a key.
            EnvironmentFault: FastDeploy is not there, a port is taken, or the server does not start, hangs or ends.
        """
        from erniecore_fastdeploy_server.serving import serve

        return serve(config, directory)


plugin = FastDeployServer()
