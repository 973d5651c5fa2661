"""The plugin object of the Hugging Face hub. Its client is imported when something is fetched that is not here."""

from __future__ import annotations

from pathlib import Path

from erniecore.api import hookimpl
from erniecore.api.data import HubPlugin


class HuggingFace(HubPlugin):
    """Models and data sets of the Hugging Face hub, or of a host with its interface (``HF_ENDPOINT``)."""

    name = "hf"
    summary = "models and data sets of the Hugging Face hub: hf:owner/name"

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
    def ernie_pull_model(self, name: str) -> Path:
        """Its directory in the cache."""
        from erniecore_hubs.pulling import pull_model

        return pull_model(name)

    @hookimpl
    def ernie_push_model(self, name: str, directory: Path) -> str:
        """One commit with all files of the directory."""
        from erniecore_hubs.pulling import push_model

        return push_model(name, directory)


hf = HuggingFace()
