"""Whose settings file it is: ours, or that of a toolkit whose importer is installed.

A file with a section of ours is ours, and no importer is asked or loaded. Reads files; converts nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_catalog import install_command
from erniecore_catalog.known import known
from erniecore_system.files import parse_json, read_text

from erniecore import registry
from erniecore.config import yaml
from erniecore.config.core import is_ours
from erniecore.config.values import Document
from erniecore.config.values import Path as DataPath
from erniecore.errors import ConfigError, Problem, UsageError, article, shorten
from erniecore.host import assemble
from erniecore.kinds import KINDS
from erniecore.plugin import Plugin

if TYPE_CHECKING:
    from erniecore.types.importing import ForeignKeys


def importer_of(content: Mapping[str, Any], where: str) -> Plugin | None:
    """The importer of the toolkit that has the most keys of a parsed file; None for ours, and for one that nobody knows.

    Raises ``UsageError`` where two importers know as many.
    """
    if is_ours(content):
        return None
    counts = {plugin: _count(plugin, content) for plugin in registry.loadable("importer")}
    most = max(counts.values(), default=0)
    best = [plugin for plugin, count in counts.items() if count == most and most]
    if len(best) > 1:
        names = " or ".join(f"{KINDS['importer'].flag} {plugin.name}" for plugin in best)
        raise UsageError(
            "several importers recognize this file",
            where=where,
            found=", ".join(plugin.name for plugin in best),
            fix=f"convert it with one of them: ernie config import {where} --out NEW.yaml {names}",
        )
    return best[0] if best else None


def _count(plugin: Plugin, content: Mapping[str, Any]) -> int:
    host = assemble({"importer": plugin})
    return int(host.call(plugin, "ernie_match_settings", content=content))


def importer_of_file(path: Path) -> Plugin | None:
    """As :func:`importer_of`; None also for a file that cannot be read."""
    try:
        content = read_document(path).data
    except (UsageError, ConfigError):
        return None
    return importer_of(content, str(path))


def read_document(path: Path) -> Document:
    """A YAML or JSON file with the line of each key.

    Raises:
        UsageError: it cannot be read. ConfigError: neither YAML nor JSON.
    """
    try:
        text = read_text(path, yaml.MAX_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read the file: {getattr(error, 'strerror', None) or error}", where=str(path)
        ) from error
    return _json(text, str(path)) if path.suffix == ".json" else yaml.parse(text, str(path))


def _json(text: str, source: str) -> Document:
    """A JSON object; the line of a key is where its name first stands."""
    try:
        data = parse_json(text)
    except ValueError as error:
        line = getattr(error, "lineno", 0)
        raise ConfigError([Problem(source, line, "", f"no JSON: {error}")]) from error
    if not isinstance(data, dict):
        raise ConfigError([Problem(source, 1, "", f"must be an object of keys (got {shorten(data)})")])
    lines: dict[DataPath, int] = {}
    for key in data:
        place = text.find(json.dumps(key, ensure_ascii=False))
        lines[(key,)] = text.count("\n", 0, place) + 1 if place >= 0 else 0
    return Document(data, lines)


def refuse_foreign(content: Mapping[str, Any], source: str) -> None:
    """Raise ``UsageError`` for a file of another toolkit where only settings of ours can stand."""
    importer = importer_of(content, source)
    if importer is not None:
        raise UsageError(
            f"this is {article(_table(importer).toolkit)} file; only `ernie run FILE` converts one, others cannot extend it",
            where=source,
            next=f"ernie config import {source} --out NEW.yaml",
            code="ERN-C011",
        )


def tables() -> list[ForeignKeys]:
    """The keys of every toolkit whose importer is installed."""
    return [_table(plugin) for plugin in registry.loadable("importer")]


def _table(importer: Plugin) -> ForeignKeys:
    found: ForeignKeys = assemble({"importer": importer}).call(importer, "ernie_describe_keys")
    return found


def unrecognized(path: Path) -> UsageError:
    """What to say of a file that is not ours and that no installed importer knows."""
    names = ", ".join(entry.name for entry in registry.entries("importer")) or "none"
    homes = {name: home for (kind, name), home in known().items() if kind == "importer"}
    return UsageError(
        "no installed importer recognizes this file",
        where=str(path),
        found=f"importers installed: {names}",
        fix="; ".join(f"{install_command(home)} for files of {name}" for name, home in homes.items()),
        next="ernie plugins --kind importer",
    )
