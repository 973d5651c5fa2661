"""Settings files of other toolkits as a layer of settings; each value keeps the line and key that it comes from.

An importer plugin converts the file; this module passes it the file and the overrides, and reports the result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from erniecore_system.units import counted

from erniecore import registry
from erniecore.config.core import OURS
from erniecore.config.recognize import read_document
from erniecore.config.sources import parse_value
from erniecore.config.tree import COMMAND_LINE, Leaf, Place, Tree, merge
from erniecore.errors import (
    CheckpointError,
    ConfigError,
    PluginError,
    PluginNotFound,
    Problem,
    UsageError,
    article,
    shorten,
)
from erniecore.host import assemble
from erniecore.plugin import Plugin
from erniecore.types.importing import Imported, ImportedSetting, ImportTarget
from erniecore.types.run import Cluster

BAD_VALUE, UNKNOWN = "ERN-C030", "ERN-C031"
_OVERRIDE = re.compile(r"(?P<key>\w[\w.]*)=(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class ForeignFile:
    """A file's content. ``lines``: of its keys; ``overrides``: key -> ``key=value`` as it was typed."""

    path: str
    data: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)

    def problem(self, old: str, message: str) -> Problem:
        """A problem with the value of a key, at its place."""
        if old in self.overrides:
            return Problem("command line", 0, self.overrides[old], message)
        value = f" (got {shorten(self.data[old])})" if old in self.data else ""
        return Problem(self.path, self.lines.get(old, 0), old, message + value)


class ImportedLayer(NamedTuple):
    """The settings of a foreign file; ``notes``: what to tell the user; ``advice``: as in ``Imported``."""

    tree: Tree
    notes: tuple[str, ...]
    advice: Mapping[str, str]


def is_override(argument: str) -> bool:
    """Whether ``key=value`` overrides a key of the foreign file: it names no section of ours."""
    match = _OVERRIDE.fullmatch(argument)
    return match is not None and match["key"].partition(".")[0] not in OURS


def read(path: Path, overrides: Sequence[str] = ()) -> ForeignFile:
    """A file with ``key=value`` arguments on top.

    Raises:
        UsageError: no such file, or one of erniecore's own. ConfigError: neither YAML nor JSON.
    """
    document = read_document(path)
    found = sorted(OURS & set(document.data))
    if found:
        raise UsageError(
            "this file has settings of erniecore already",
            where=str(path),
            found=", ".join(found),
            next=f"ernie run {path}",
        )
    lines = {str(p[0]): n for p, n in document.lines.items() if len(p) == 1}
    return with_overrides(ForeignFile(str(path), document.data, lines), overrides)


def with_overrides(file: ForeignFile, overrides: Sequence[str]) -> ForeignFile:
    """``file`` with ``key=value`` arguments over its values; raises ``UsageError`` for one that is none."""
    data, typed = dict(file.data), dict(file.overrides)
    for argument in overrides:
        match = _OVERRIDE.fullmatch(argument)
        if match is None:
            raise UsageError(f"{argument!r} is not key=value", fix="override keys of the file, such as max_steps=10")
        data[match["key"]] = parse_value(match["value"], f"command line: {argument}")
        typed[match["key"]] = argument
    return ForeignFile(file.path, data, file.lines, typed)


def import_file(file: ForeignFile, importer: Plugin, device: str = "cpu") -> Imported:
    """What the importer makes of a file for a device.

    Raises ``ConfigError`` for values that mean nothing in the toolkit either, all of them together.
    """
    target = ImportTarget(device, _dtypes(device))
    host = assemble({"importer": importer})
    outcome: Imported = host.call(importer, "ernie_import_settings", content=file.data, target=target)
    if outcome.problems:
        raise ConfigError([file.problem(old, text) for old, text in outcome.problems.items()], code=BAD_VALUE)
    return outcome


def _dtypes(device: str) -> frozenset[str]:
    """Of an installed device; nothing of another one."""
    try:
        plugin = registry.load("device", device)
    except PluginError:
        return frozenset()
    opened = assemble({"device": plugin}).hook.ernie_open_device(config=plugin.Config(), cluster=Cluster())
    return frozenset(opened.dtypes)


def refuse_unknown(file: ForeignFile, outcome: Imported) -> None:
    """Raise ``ConfigError`` that names each unknown key, with the nearest known one."""
    if outcome.unknown:
        problems = []
        for key in outcome.unknown:
            close = outcome.suggestions.get(key)
            hint = f"; did you mean {close}?" if close else ""
            problems.append(file.problem(key, f"{outcome.unknown_reason}{hint}"))
        fix = "correct or remove it, or `ernie config import --allow-unknown --out NEW.yaml` leaves it out"
        raise ConfigError(problems, code=UNKNOWN, fix=fix)


def layer_of(path: Path, importer: Plugin, overrides: Sequence[str], device: str) -> ImportedLayer:
    """The settings of a file that trains.

    Raises:
        UsageError: the file is for another command. ConfigError: unknown keys, values that mean nothing.
    """
    file = read(path, overrides)
    outcome = import_file(file, importer, device)
    refuse_unknown(file, outcome)
    toolkit = article(outcome.toolkit)
    if outcome.command:
        raise UsageError(
            f"this {outcome.toolkit} file trains nothing: it is for {outcome.purpose}",
            where=str(path),
            next=outcome.command,
            code="ERN-C032",
        )
    notes = [f"{path} is {toolkit} file: {counted(len(outcome.mapped), 'key')} mapped, {len(outcome.dropped)} dropped "
             f"(`ernie config import {path}` lists them)"]  # fmt: skip
    return ImportedLayer(tree_of(outcome, file), (*notes, *map(str, outcome.notes)), outcome.advice)


def tree_of(outcome: Imported, file: ForeignFile) -> Tree:
    """The settings with their places."""
    tree: Tree = {}
    for key, setting in outcome.settings.items():
        place = _place(key, setting, file, outcome.toolkit)
        node: Leaf | Tree = Leaf(setting.value, place)
        if isinstance(setting.value, dict):
            node = {name: Leaf(value, place) for name, value in setting.value.items()}
        for part in reversed(key.split(".")):
            node = {part: node}
        assert isinstance(node, dict)
        tree = merge(tree, node)
    return tree


def _place(key: str, setting: ImportedSetting, file: ForeignFile, toolkit: str) -> Place:
    if not setting.keys:
        return Place(f"{file.path} (default of {setting.default_of or toolkit})")
    old = setting.keys[0]
    shown = f"{key} (from {', '.join(setting.keys)})"
    if old in file.overrides:
        return Place(COMMAND_LINE, argument=shown)
    return Place(file.path, file.lines.get(old, 0), shown)


def advise(error: PluginNotFound | CheckpointError, advice: Mapping[str, str]) -> None:
    """Add to an error about a selected plugin or model directory what the importer says of it."""
    if isinstance(error, PluginNotFound):
        error.fix = error.fix or advice.get(error.kind, "")
    else:
        error.fix = advice.get("model.path", "") or error.fix
