"""The plugin objects of the hubs. Their clients are imported when something is fetched that is not here."""

from __future__ import annotations

from pathlib import Path

from erniecore.api import hookimpl
from erniecore.api.data import HubPlugin


class _Hub(HubPlugin):
    """What the hubs have in common: the cache, and which files are fetched. ``places.py`` has their clients."""

    @hookimpl
    def ernie_fetch_file(self, url: str) -> Path:
        """The file, or the directory with the files of the data set."""
        from erniecore_hubs.pulling import pull_data

        return pull_data(url)

    @hookimpl
    def ernie_pin_revision(self, name: str, model: bool) -> str:
        """A revision that was looked up before keeps its commit; ``ernie model pull`` asks again."""
        from erniecore_hubs.pulling import pin

        return str(pin(name, model))

    @hookimpl
    def ernie_pull_model(self, name: str, weights: bool) -> Path:
        """Its directory in the cache."""
        from erniecore_hubs.pulling import pull_model

        return pull_model(name, weights)

    @hookimpl
    def ernie_push_model(self, name: str, directory: Path) -> str:
        """One commit with all files of the directory."""
        from erniecore_hubs.pulling import push_model

        return push_model(name, directory)


class HuggingFace(_Hub):
    """Models and data sets of the Hugging Face hub, or of a host with its interface (``HF_ENDPOINT``)."""

    name = "hf"
    summary = "models and data sets of the Hugging Face hub: hf:owner/name"


class ModelScope(_Hub):
    """Models and data sets of ModelScope, or of a host with its interface (``MODELSCOPE_ENDPOINT``); nothing is uploaded."""

    name = "ms"
    summary = "models and data sets of ModelScope: ms:owner/name"


hf, ms = HuggingFace(), ModelScope()
