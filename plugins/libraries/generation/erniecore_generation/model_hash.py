"""The content of a model by one hash: its files and those of its adapter."""

from __future__ import annotations

from pathlib import Path

from erniecore.api.run import adapter_directory, locate, tree_digest


def model_hash(source: Path, adapter: Path | None = None) -> str:
    """sha256 over names and contents of all files of the model that ``source`` means and of what goes onto it.

    Raises:
        UsageError: no model there.
    """
    located = locate(source)
    return tree_digest(located.path, located.adapter, adapter_directory(adapter) if adapter is not None else None)
