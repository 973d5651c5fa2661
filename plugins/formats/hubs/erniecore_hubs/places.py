"""The hubs, and the addresses of each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from erniecore_hubs.names import HubName


class Place(NamedTuple):
    """A hub: its public address, and the variable of the environment that names another host with its interface."""

    public: str
    variable: str


PLACES: Mapping[str, Place] = {
    "hf": Place("https://huggingface.co", "HF_ENDPOINT"),
    "ms": Place("https://modelscope.cn", "MODELSCOPE_ENDPOINT"),
}


def endpoint(name: HubName) -> str:
    """URL of the hub that has ``name``: the one in the name, the user's, or the public one."""
    return name.endpoint or own_endpoint(name.hub)


def own_endpoint(hub: str) -> str:
    """URL of a hub by the environment: the user's tokens are for it alone, whatever names in settings say."""
    place = PLACES[hub]
    return (os.environ.get(place.variable) or place.public).rstrip("/")
