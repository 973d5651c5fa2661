"""Servers with one thing wrong."""

from __future__ import annotations

from pathlib import Path

from erniecore.api import Field, UsageError, hookimpl
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.others import ToyServerConfig, ToyServerPlugin


class ServesEmpty(ToyServerPlugin):
    """An empty directory is served."""

    @hookimpl
    def ernie_serve(self, config: ToyServerConfig, directory: Path) -> int:
        if not directory.is_dir():
            raise UsageError("no such directory", where=str(directory))
        return 0


class RaisesItsOwn(ToyServerPlugin):
    """A missing directory is Python's own error."""

    @hookimpl
    def ernie_serve(self, config: ToyServerConfig, directory: Path) -> int:
        if "config.json" not in [p.name for p in directory.iterdir()]:
            raise UsageError("no model here", where=str(directory))
        return 0


class OpenConfig(ToyServerConfig):
    """Settings that listen on all interfaces by default."""

    host: str = Field("0.0.0.0", description="Address to listen on.")


class ListensEverywhere(ToyServerPlugin):
    """Open to the network by default."""

    Config = OpenConfig


class AnyPortConfig(ToyServerConfig):
    """Settings that accept invalid ports."""

    port: int = Field(8000, description="Port.")


class AnyPort(ToyServerPlugin):
    """Ports are not checked."""

    Config = AnyPortConfig


MUTANTS = (
    mutant("server_refuses_missing_directory", RaisesItsOwn),
    mutant("server_refuses_empty_directory", ServesEmpty),
    mutant("server_listens_on_loopback", ListensEverywhere),
    mutant("server_port_is_checked", AnyPort),
)
