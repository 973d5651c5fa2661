"""The client of a hub. Its package is imported when something is fetched."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from erniecore_hubs.names import HubName


class HubClient(Protocol):
    """One repository of a hub."""

    def commit(self) -> str:
        """Of the revision, or the newest one."""
        ...

    def sizes(self) -> dict[str, int]:
        """Files of the repository at the commit, with their bytes."""
        ...

    def fetch(self, files: Iterable[str], directory: Path) -> None:
        """Files into a directory; what is there in part is continued."""
        ...

    def upload(self, directory: Path, private: bool) -> str:
        """The commit of all files of a directory. Raises ``UsageError`` where the hub takes none from here."""
        ...


def open_client(name: HubName, model: bool) -> HubClient:
    """What speaks with the hub of ``name``. Raises ``EnvironmentFault`` where its package is missing."""
    if name.hub == "ms":
        from erniecore_hubs.modelscope import ModelScopeClient

        return ModelScopeClient(name, model)
    from erniecore_hubs.client import Client

    return Client(name, model)
