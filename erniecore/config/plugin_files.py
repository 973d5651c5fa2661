"""``plugins`` of settings: files with plugins. What such a file is, is said in ``erniecore.plugin_files``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from erniecore.config.sources import Source
from erniecore.config.tree import COMMAND_LINE, Leaf, Place, place_of, plain
from erniecore.errors import ConfigError, UsageError, shorten
from erniecore.plugin_files import PluginFile, active, is_allowed, named, read


def of_settings(sources: Sequence[Source]) -> tuple[PluginFile, ...]:
    """The files of the command line and those that ``plugins`` of the sources names, which is taken out of them.

    Raises:
        ConfigError: ``plugins`` is no list of files, or a file is not the one whose hash is written with it.
        UsageError: a file cannot be read, or the user has not named it yet.
    """
    files = [file for file in active() if file.named]
    for source in sources:
        node = source.tree.pop("plugins", None)
        if node is None:
            continue
        place = place_of(node, ()) or Place("settings")
        value = node.value if isinstance(node, Leaf) else node
        for item in value if isinstance(value, list) else [value]:
            path, digest = _written(item, place)
            if all(file.path != str(Path(path).resolve()) for file in files):
                files.append(_of_settings(path, digest, place))
    return tuple(files)


def _written(item: Any, place: Place) -> tuple[str, str]:
    """Path and hash (or ``""``) of one entry of ``plugins``."""
    found = {"path": item} if isinstance(item, str) else item
    if not isinstance(found, Mapping) or not {"path"} <= found.keys() <= {"path", "sha256"}:
        message = f"must be a list of files (got {shorten(plain(item))}); such as plugins: [./my_reward.py]"
        raise ConfigError([place.problem("plugins", message)])
    return str(found["path"]), str(found.get("sha256", ""))


def _of_settings(path: str, digest: str, place: Place) -> PluginFile:
    if place.source == COMMAND_LINE:
        return named(path)
    file = read(path, False, str(place))
    if digest and digest != file.sha256:
        message = f"{path} is not the file that was used; its sha256 is {file.sha256}, and {digest} is written here; "
        raise ConfigError([place.problem("plugins", f"{message}put it back, or name it yourself: --plugin {path}")])
    if not is_allowed(file):
        raise UsageError(
            f"these settings name Python code, {path}, that you have not named yourself",
            where=f"{place}: plugins",
            fix=f"read the file; if you trust it, name it once: --plugin {path}",
        )
    return file
