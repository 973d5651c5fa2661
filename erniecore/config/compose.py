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
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from erniecore import sections
from erniecore.config.plugin_defaults import plugin_defaults
from erniecore.config.provenance import Provenance
from erniecore.config.selection import Selection, select
from erniecore.config.settings import SECTIONS, RunSettings, composed, default_source
from erniecore.config.sources import EnvironmentSource, PluginDefaultSource, Read, Source, command_line
from erniecore.config.tree import Tree, retired_keys
from erniecore.errors import CheckpointError, ConfigError, PluginNotFound, Problem
from erniecore.host import Host, assemble
from erniecore.kinds import KINDS, RUN_KINDS

if TYPE_CHECKING:
    from erniecore.plugin_files import PluginFile

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
        plugin_files: files with plugins that the command line or the settings name.
    """

    settings: RunSettings
    plugins: Mapping[str, Any]
    host: Host = field(repr=False)
    provenance: Provenance = field(repr=False)
    request: Request
    notes: tuple[str, ...] = ()
    plugin_files: tuple[PluginFile, ...] = ()


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
    files = _plugin_files(written.sources)
    try:
        chosen = select(written.sources, require)
    except (PluginNotFound, CheckpointError) as error:
        if written.advice:
            from erniecore.config.imported import advise

            advise(error, written.advice)
        raise
    defaults = plugin_defaults(chosen)
    settings, found = _settings(chosen, defaults)
    problems = [*written.problems, *chosen.problems, *found]
    if problems or settings is None:
        raise ConfigError(problems)
    host = assemble(chosen.plugins)
    provenance = Provenance(settings, chosen.tree, defaults)
    problems = host.check_settings(settings)
    if problems:
        raise provenance.located(ConfigError(problems))
    arguments = tuple(sys.argv if command is None else command)
    request = Request(file, tuple(overrides), dict(flags or {}), arguments)
    notes = (*written.notes, *retired_keys(chosen.tree))
    return LoadedSettings(settings, MappingProxyType(chosen.plugins), host, provenance, request, notes, files)


def _plugin_files(sources: Sequence[Source]) -> tuple[PluginFile, ...]:
    """The plugin files of these settings, which are active from here on."""
    if "ERNIE_PLUGIN_FILES" not in os.environ and all("plugins" not in source.tree for source in sources):
        return ()
    from erniecore.config.plugin_files import of_settings
    from erniecore.plugin_files import activate

    files = of_settings(sources)
    activate(files)
    return files


def read_sources(
    file: Path | None, overrides: Sequence[str], flags: Mapping[str, Any], environ: Mapping[str, str]
) -> Read:
    """The command line above the environment above the file above what it extends. A file of another toolkit is
    converted for the chosen device; arguments that override its own keys are part of it."""
    environment = EnvironmentSource(environ)
    if file is not None:
        from erniecore.config.files import read_with_file

        return read_with_file(Path(file), overrides, flags, environment)
    return Read((*command_line(overrides, flags), environment), environment.problems)


def _settings(chosen: Selection, defaults: Tree) -> tuple[RunSettings | None, list[Problem]]:
    """Pass 2: the settings of a selection, or everything that is wrong."""
    absent = [kind for kind in RUN_KINDS if kind not in chosen.plugins]
    unselected = {k: sections.default(KINDS[k].config) if KINDS[k].required else None for k in absent}
    cls: Any = composed(chosen.plugins)
    settings: RunSettings | None = None
    errors: Sequence[Any] = ()
    try:
        sources = (*chosen.sources, PluginDefaultSource(defaults), default_source(chosen.plugins))
        settings = cls(sources=sources, plugins=chosen.names, **unselected)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    if settings is not None and chosen.tree.keys() <= set(SECTIONS) - set(absent):
        return settings, []
    from erniecore.config.problems import problems_of

    return settings, problems_of(chosen, errors)
