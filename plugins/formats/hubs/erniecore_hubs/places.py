"""The hubs: where each is, and what speaks with it. Clients are imported when something is fetched."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from erniecore_hubs.names import HubName


class Place(NamedTuple):
    """A hub: its public address, and the variable of the environment that names another host with its interface."""

    public: str
    variable: str


PLACES: Mapping[str, Place] = {
    "hf": Place("https://huggingface.co", "HF_ENDPOINT"),
    "ms": Place("https://modelscope.cn", "MODELSCOPE_ENDPOINT"),
}


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


def endpoint(name: HubName) -> str:
    """URL of the hub that has ``name``: the one in the name, the user's, or the public one."""
    return name.endpoint or own_endpoint(name.hub)


def own_endpoint(hub: str) -> str:
    """URL of a hub by the environment: the user's tokens are for it alone, whatever names in settings say."""
    place = PLACES[hub]
    return (os.environ.get(place.variable) or place.public).rstrip("/")


def open_client(name: HubName, model: bool) -> HubClient:
    """What speaks with the hub of ``name``. Raises ``EnvironmentFault`` where its package is missing."""
    if name.hub == "ms":
        from erniecore_hubs.modelscope import ModelScopeClient

        return ModelScopeClient(name, model)
    from erniecore_hubs.client import Client

    return Client(name, model)
