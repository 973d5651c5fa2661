"""Settings files: ours with what they ``extend``, and those of another toolkit, converted by its importer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from erniecore_system.files import read_text

from erniecore.config import yaml
from erniecore.config.core import is_ours
from erniecore.config.sources import EnvironmentSource, Read, Source, command_line, merged
from erniecore.config.tree import Leaf, Tree, merge, tree_of
from erniecore.errors import ConfigError, Problem, UsageError, nearest, shorten
from erniecore.kinds import KINDS
from erniecore.plugin import Plugin

#: levels of `extends`, and files that one settings file may reach
MAX_EXTENDS, MAX_FILES = 16, 64


class FileSource(Source):
    """The settings file, without what it extends."""


class ExtendedSource(Source):
    """The files that the settings file extends, later ones over earlier ones."""


class ConvertedSource(Source):
    """A settings file of another toolkit, converted."""

    complete = True


def read_with_file(
    file: Path, overrides: Sequence[str], flags: Mapping[str, Any], environment: EnvironmentSource
) -> Read:
    """As ``compose.read_sources``, for a command with a settings file."""
    importer = _importer_of(file)
    if importer is None:
        own, extended = own_and_extended(file)
        above: tuple[Source, ...] = (*command_line(overrides, flags), environment)
        return Read((*above, FileSource(own), ExtendedSource(extended)), environment.problems)
    from erniecore.config.imported import is_override, layer_of

    ours = [argument for argument in overrides if not is_override(argument)]
    theirs = [argument for argument in overrides if is_override(argument)]
    above = (*command_line(ours, flags), environment)
    device = _named_plugin(merged(above), "device") or str(KINDS["device"].default)
    layer = layer_of(file, importer, theirs, device)
    return Read((*above, ConvertedSource(layer.tree)), environment.problems, layer.notes, layer.advice)


def _importer_of(file: Path) -> Plugin | None:
    """The importer of a file of another toolkit; None for ours, and for one that cannot be read."""
    try:
        if is_ours(yaml.parse(read_text(file, 2 * yaml.MAX_BYTES), str(file)).data):
            return None
    except (OSError, ValueError, ConfigError):
        pass  # JSON may be no YAML, and whoever reads it next says what is wrong
    from erniecore.config.recognize import importer_of_file

    return importer_of_file(file)


def _named_plugin(tree: Tree, kind: str) -> str:
    """The plugin that a tree names for a kind; empty: none."""
    section = tree.get(kind)
    name = section.get("name") if isinstance(section, dict) else None
    return name.value if isinstance(name, Leaf) and isinstance(name.value, str) else ""


def read_file(path: Path) -> Tree:
    """A settings file over the files that it ``extends``. Raises what :func:`own_and_extended` raises."""
    own, extended = own_and_extended(path)
    return merge(extended, own)


def own_and_extended(path: Path, above: tuple[Path, ...] = (), read: list[Path] | None = None) -> tuple[Tree, Tree]:
    """A settings file, and the files that it ``extends`` (relative to it) as one tree.

    Args:
        above: the files that led to this one. read: all files that were read before it, for one settings file.

    Raises:
        UsageError: the file cannot be read, is one of another toolkit, or extends itself; too many files are extended.
        ConfigError: it is not valid YAML.
    """
    read = [] if read is None else read
    shown, real = str(path), path.resolve()
    read.append(real)
    if real in above or len(above) >= MAX_EXTENDS or len(read) > MAX_FILES:
        chain = " -> ".join(p.name for p in (*above, real))
        most = f"{MAX_EXTENDS} levels and {MAX_FILES} files"
        raise UsageError(
            "files extend each other in a circle" if real in above else "too many extends", found=chain, expected=most
        )
    try:
        text = read_text(path, yaml.MAX_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the settings file: {reason}", where=shown, fix=_instead(path)) from error
    document = yaml.parse(text, shown)
    if not is_ours(document.data):
        from erniecore.config.recognize import refuse_foreign

        refuse_foreign(document.data, shown)
    parents = document.data.pop("extends", None) or []
    parents = [parents] if isinstance(parents, str) else parents
    if not isinstance(parents, list) or not all(isinstance(p, str) for p in parents):
        message = f"must be a file or a list of files (got {shorten(parents)})"
        raise ConfigError([Problem(shown, document.lines[("extends",)], "extends", message)])
    tree: Tree = {}
    for parent in parents:
        parent_path = path.parent / parent
        if not os.path.isfile(parent_path):
            message = f"no such file: {parent_path}"
            raise ConfigError([Problem(shown, document.lines[("extends",)], "extends", message)])
        own, extended = own_and_extended(parent_path, (*above, real), read)
        tree = merge(tree, merge(extended, own))
    return tree_of(document, shown), tree


def _instead(path: Path) -> str:
    """What may have been meant by a settings file that cannot be read."""
    if (path.parent / "config.json").is_file():
        return f"{path.parent} is a model directory: --model {path.parent}"
    beside = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    close = nearest(path.name, beside)
    return f"did you mean {path.parent / close}?" if close and close != path.name else ""
