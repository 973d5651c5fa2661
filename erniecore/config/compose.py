"""From sources to settings: names first, then one settings class made of the chosen plugins' sections, validated once.

``load`` is what every command calls. It imports no paddle and starts nothing; all problems are reported together.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import ValidationError

from erniecore import registry, sections
from erniecore.config import imported
from erniecore.config.problems import Known, unknown_section
from erniecore.config.provenance import Provenance
from erniecore.config.recognize import importer_of_file
from erniecore.config.selection import Selection, select
from erniecore.config.settings import (
    SECTIONS,
    RunSettings,
    composed,
    default_source,
    known_keys,
    plain_name,
    problems_of,
)
from erniecore.config.sources import (
    ConvertedSource,
    EnvironmentSource,
    ExtendedSource,
    FileSource,
    Source,
    command_line,
    merged,
    own_and_extended,
)
from erniecore.config.tree import Leaf, Tree, leaves, retired_keys
from erniecore.errors import CheckpointError, ConfigError, PluginError, PluginNotFound, Problem
from erniecore.host import Host, assemble
from erniecore.kinds import KINDS, RUN_KINDS

REQUIRED: tuple[str, ...] = tuple(k for k in RUN_KINDS if KINDS[k].required)


class Request(NamedTuple):
    """What :func:`load` was given, so that another process can load the same.

    Attributes:
        command: the arguments of the command line, for resolved.yaml.
    """

    file: Path | None = None
    overrides: tuple[str, ...] = ()
    flags: Mapping[str, Any] = MappingProxyType({})
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoadedSettings:
    """Validated settings, their plugins and the source of each value.

    Attributes:
        settings: frozen and valid.
        plugins: kind -> plugin; ``format`` and ``callback``: lists. host: these plugins, assembled once for the run.
        provenance: where each value was written. request: what :func:`load` was given.
        notes: for the user: on the conversion of another toolkit's file, and on retired keys.
    """

    settings: RunSettings
    plugins: Mapping[str, Any]
    host: Host = field(repr=False)
    provenance: Provenance = field(repr=False)
    request: Request
    notes: tuple[str, ...] = ()


def load(
    file: Path | None = None,
    overrides: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    require: Sequence[str] = REQUIRED,
    command: Sequence[str] | None = None,
) -> LoadedSettings:
    """Settings of a run or of another command.

    Args:
        file: YAML file, also one of another toolkit with an installed importer.
        overrides: ``section.key=value`` arguments. flags: flag without dashes -> value.
        environ: the environment; default ``os.environ``.
        require: kinds without which the command cannot work.
        command: the command line as typed, for resolved.yaml; default ``sys.argv``.

    Raises:
        ConfigError: everything that is wrong, sorted by place.
        PluginError, CheckpointError, UsageError: a plugin, model directory or file that cannot be used at all.
    """
    written = read_sources(file, overrides, flags or {}, os.environ if environ is None else environ)
    try:
        chosen = select(written.sources, require)
    except (PluginNotFound, CheckpointError) as error:
        imported.advise(error, written.advice)
        raise
    settings, found = _settings(chosen)
    problems = [*written.problems, *chosen.problems, *found]
    if problems or settings is None:
        raise ConfigError(problems)
    host = assemble(chosen.plugins)
    provenance = Provenance(settings, chosen.tree)
    problems = host.check_settings(settings)
    if problems:
        raise provenance.located(ConfigError(problems))
    arguments = tuple(sys.argv if command is None else command)
    request = Request(file, tuple(overrides), dict(flags or {}), arguments)
    notes = (*written.notes, *retired_keys(chosen.tree))
    return LoadedSettings(settings, MappingProxyType(chosen.plugins), host, provenance, request, notes)


class Read(NamedTuple):
    """What the user wrote.

    Attributes:
        sources: from the highest to the lowest. problems: environment variables that are no settings.
        notes: as in :class:`LoadedSettings`. advice: as in ``Imported``.
    """

    sources: tuple[Source, ...]
    problems: list[Problem]
    notes: tuple[str, ...] = ()
    advice: Mapping[str, str] = MappingProxyType({})


def read_sources(
    file: Path | None, overrides: Sequence[str], flags: Mapping[str, Any], environ: Mapping[str, str]
) -> Read:
    """The command line above the environment above the file above what it extends. A file of another toolkit is
    converted for the chosen device; arguments that override its own keys are part of it."""
    environment = EnvironmentSource(environ)
    importer = importer_of_file(Path(file)) if file is not None else None
    if file is None or importer is None:
        own, extended = own_and_extended(Path(file)) if file is not None else ({}, {})
        above: tuple[Source, ...] = (*command_line(overrides, flags), environment)
        return Read((*above, FileSource(own), ExtendedSource(extended)), environment.problems)
    ours = [argument for argument in overrides if not imported.is_override(argument)]
    theirs = [argument for argument in overrides if imported.is_override(argument)]
    above = (*command_line(ours, flags), environment)
    device = _named_plugin(merged(above), "device") or str(KINDS["device"].default)
    layer = imported.layer_of(Path(file), importer, theirs, device)
    return Read((*above, ConvertedSource(layer.tree)), environment.problems, layer.notes, layer.advice)


def _named_plugin(tree: Tree, kind: str) -> str:
    """The plugin that a tree names for a kind; empty: none."""
    section = tree.get(kind)
    name = section.get("name") if isinstance(section, dict) else None
    return name.value if isinstance(name, Leaf) and isinstance(name.value, str) else ""


def _settings(chosen: Selection) -> tuple[RunSettings | None, list[Problem]]:
    """Pass 2: the settings of a selection, or everything that is wrong."""
    known = Known(known_keys(chosen.plugins), lambda key: _elsewhere(key, chosen))
    problems = [p for kind in RUN_KINDS if kind not in chosen.plugins for p in _unselected(kind, chosen.tree.get(kind))]
    for name, node in chosen.tree.items():
        if name not in SECTIONS:
            problems += unknown_section(name, node, known)
    unselected = {
        k: sections.default(KINDS[k].config) if KINDS[k].required else None
        for k in RUN_KINDS
        if k not in chosen.plugins
    }
    cls: Any = composed(chosen.plugins)
    try:
        sources = (*chosen.sources, default_source(chosen.plugins))
        settings: RunSettings = cls(sources=sources, plugins=chosen.names, **unselected)
    except ValidationError as error:
        return None, problems + problems_of(error.errors(include_url=False), chosen.tree, chosen.plugins, known)
    return settings, problems


def _unselected(kind: str, node: Leaf | Tree | None) -> list[Problem]:
    """Keys below a kind that has no plugin; one problem per key."""
    if node is None or KINDS[kind].required:  # reported already: nobody chose one
        return []
    message = f"belongs to {kind} plugins; none is selected, add {KINDS[kind].flag} NAME"
    return [
        leaf.place.problem(".".join(path), message)
        for path, leaf in leaves(node, (kind,))
        if not (path == (kind,) and leaf.value in (None, {})) and path != (kind, "name")
    ]


def _elsewhere(key: str, chosen: Selection) -> str:
    """What to say of an unknown key that another plugin of the same kind has; empty: nothing."""
    kind, _, name = key.partition(".")
    if kind not in chosen.names:
        return ""
    for entry in registry.entries(kind):
        if entry.status != registry.OK or entry.name == plain_name(chosen.names[kind]):
            continue
        try:
            plugin = registry.load(kind, entry.name)
        except PluginError:  # broken, and nobody named it
            continue
        if name in plugin.Config.model_fields:
            return f"belongs to {kind} {entry.name}; selected is {chosen.names[kind]}"
    return ""
