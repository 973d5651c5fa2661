"""Names on hubs in settings, such as ``model: hf:owner/name`` or ``data.train: hf:owner/name:train``: each is pinned to a commit,
and what describes models is fetched; their weights when a run starts. What settings do not name is never asked for.

A hub is a reader plugin (``HubPlugin``). The settings hold the directory of a model, whose place is its pinned name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from erniecore import registry
from erniecore.config.sources import DirectorySource, Source, merged
from erniecore.config.tree import Leaf, Place, Tree
from erniecore.errors import PluginError
from erniecore.host import call_one
from erniecore.plugin import HubPlugin

_NAME = re.compile(r"([a-z][a-z0-9-]*):(?://)?[A-Za-z0-9][\w.-]*/[\w.-]")


def hub_of(name: Any, place: Place | None = None) -> HubPlugin | None:
    """The hub that ``name`` begins with; ``None`` for anything else, such as a path.

    Raises:
        PluginNotFound: a hub of ours that is not installed, with the command that brings it.
    """
    found = _NAME.match(name) if isinstance(name, str) else None
    if found is None or os.path.exists(name) or not registry.offered("reader", found[1]):
        return None
    try:
        plugin = registry.load("reader", found[1])
    except PluginError as error:
        error.where = f"{place}: {name}" if place else name
        raise
    return plugin if isinstance(plugin, HubPlugin) else None


def pull(name: str, hub: HubPlugin) -> tuple[str, Path]:
    """The pinned name of a model, and its directory with what describes it; :func:`fetch_weights` brings the rest."""
    pinned: str = call_one(hub, "ernie_pin_revision", name=name, model=True)
    return pinned, Path(call_one(hub, "ernie_pull_model", name=pinned, weights=False))


def fetch_weights(pinned: str) -> None:
    """The weights of a model into its directory, where ``pinned`` is the name of one on a hub."""
    if hub := hub_of(pinned):
        call_one(hub, "ernie_pull_model", name=pinned, weights=True)


def with_hubs(sources: Sequence[Source]) -> tuple[Source, ...]:
    """``sources`` below one that has directories of models and pinned names of data sets, where they name a hub."""
    tree, found = merged(sources), Tree()
    model, data = tree.get("model"), tree.get("data")
    for key in ("name", "path"):
        leaf = model.get(key) if isinstance(model, dict) else None
        if isinstance(leaf, Leaf) and (hub := hub_of(leaf.value, leaf.place)):
            pinned, directory = pull(leaf.value, hub)
            found["model"] = {key: Leaf(str(directory), Place(pinned))}
    for key in ("train", "eval"):
        leaf = data.get(key) if isinstance(data, dict) else None
        if isinstance(leaf, Leaf) and isinstance(leaf.value, list):
            pinned_sources = [_pinned(source, leaf.place) for source in leaf.value]
            if pinned_sources != leaf.value:
                found["data"] = {**found.get("data", {}), key: replace(leaf, value=pinned_sources)}  # type: ignore[dict-item]
    return (DirectorySource(found), *sources) if found else tuple(sources)


def _pinned(source: Any, place: Place) -> Any:
    """One source of data, with the commit in its name if it is on a hub."""
    path = source.get("path") if isinstance(source, dict) else None
    hub = hub_of(path, place)
    return source if hub is None else {**source, "path": call_one(hub, "ernie_pin_revision", name=path, model=False)}
