"""From layers to settings: names first, then one settings class made of the chosen plugins' sections, validated once.

``load`` is what every command calls. It imports no paddle and starts nothing; all problems are reported together.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import SerializeAsAny, create_model
from pydantic_core import to_jsonable_python
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from erniecore import registry
from erniecore.config.core import (
    CORE_SECTIONS,
    CheckpointSection,
    DataSection,
    EvalSection,
    LogSection,
    RunSection,
    TrainSection,
)
from erniecore.config.problems import Known, unknown_section, validate
from erniecore.config.section import Section
from erniecore.config.selection import Selection, select
from erniecore.config.sources import (
    COMMAND_LINE,
    DEFAULT,
    MANY,
    Leaf,
    Place,
    Tree,
    from_command_line,
    from_environment,
    is_erniekit_file,
    leaves,
    merge,
    place_of,
    read_file,
)
from erniecore.errors import ConfigError, PluginError, PluginNotFound, Problem
from erniecore.host import assemble
from erniecore.kinds import KINDS, RUN_KINDS
from erniecore.plugin import EmptyConfig

REQUIRED: tuple[str, ...] = tuple(k for k in RUN_KINDS if KINDS[k].required)


class RunSettings(BaseSettings):
    """All settings of a run; ``composed`` derives the class whose plugin sections have their real types.

    A plugin's section is an instance of its ``Config``. ``plugins`` holds the names: kind -> name. A kind that this
    command does not need and nobody chose has an empty section and no name.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    run: RunSection
    data: DataSection
    train: TrainSection
    eval: EvalSection
    checkpoint: CheckpointSection
    log: LogSection
    device: SerializeAsAny[Section]
    parallel: SerializeAsAny[Section]
    model: SerializeAsAny[Section]
    adapter: SerializeAsAny[Section] | None = None
    quantizer: SerializeAsAny[Section] | None = None
    method: SerializeAsAny[Section]
    formats: dict[str, SerializeAsAny[Section]]
    scorers: dict[str, SerializeAsAny[Section]]
    callbacks: dict[str, SerializeAsAny[Section]]
    plugins: dict[str, str]

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only our own layers: the built-in environment source ignores unknown names and knows no lines."""
        return (init_settings,)


@dataclass(frozen=True)
class Loaded:
    """Settings with everything that was learned on the way.

    Attributes:
        settings: frozen and valid.
        plugins: kind -> plugin; ``format`` and ``callback``: lists. What ``host.assemble`` takes.
        provenance: key -> where its value comes from, e.g. ``run.yaml:4``, ``command line``, ``default``.
        tree: the merged layers. command: the words of the command line, for resolved.yaml.
        notices: what the user should know of a file that was converted from another toolkit.
        request: file, overrides and flags that :func:`load` was given, so that another process can load the same.
    """

    settings: RunSettings
    plugins: dict[str, Any]
    provenance: dict[str, str]
    tree: Tree = field(repr=False)
    command: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    request: tuple[Path | None, tuple[str, ...], dict[str, Any]] = (None, (), {})

    def located(self, error: ConfigError) -> ConfigError:
        """``error`` with the source of each key that was reported without one."""
        return ConfigError(_located(error.problems, self.tree))


def load(
    file: Path | None = None,
    overrides: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    require: Sequence[str] = REQUIRED,
    command: Sequence[str] | None = None,
) -> Loaded:
    """Settings of a run or of another command.

    Args:
        file: YAML file, also one of ERNIEKit, which is converted. overrides: ``section.key=value`` words.
        flags: flag words without dashes -> value.
        environ: the environment; default ``os.environ``.
        require: kinds without which the command cannot work.
        command: the command line as typed, for resolved.yaml; default ``sys.argv``.

    Raises:
        ConfigError: everything that is wrong, sorted by place.
        PluginError, CheckpointError, UsageError: a plugin, model directory or file that cannot be used at all.
    """
    layers, problems, notices = read_layers(file, overrides, flags or {}, os.environ if environ is None else environ)
    try:
        chosen = select(layers, require)
    except PluginNotFound as error:
        if notices:  # of a file from another toolkit, whose own words may do without the plugin
            from erniecore.migration.erniekit.layer import do_without

            error.fix = error.fix or do_without(error.message)
        raise
    problems += chosen.problems
    sections, found = _sections(chosen)
    problems += found
    if problems:
        raise ConfigError(problems)
    settings = composed(chosen.plugins)(**sections, plugins=chosen.names)
    problems = assemble(chosen.plugins).check_settings(settings)
    if problems:
        raise ConfigError(_located(problems, chosen.tree))
    words = tuple(sys.argv if command is None else command)
    request = (file, tuple(overrides), dict(flags or {}))
    return Loaded(settings, chosen.plugins, _provenance(settings, chosen.tree), chosen.tree, words, notices, request)


class Layers(NamedTuple):
    """All layers that the user wrote, merged; unknown environment names; notices as in :class:`Loaded`."""

    tree: Tree
    problems: list[Problem]
    notices: tuple[str, ...] = ()


def read_layers(
    file: Path | None, overrides: Sequence[str], flags: Mapping[str, Any], environ: Mapping[str, str]
) -> Layers:
    """The file below the environment below the command line. An ERNIEKit file is converted for the chosen device; words
    that override its own keys are part of it."""
    variables, problems = from_environment(environ)
    if file is None or not is_erniekit_file(Path(file)):
        tree = read_file(Path(file)) if file is not None else {}
        return Layers(merge(merge(tree, variables), from_command_line(overrides, flags)), problems)
    from erniecore.migration.erniekit.layer import layer_of
    from erniecore.migration.erniekit.reading import is_override

    above = merge(variables, from_command_line([w for w in overrides if not is_override(w)], flags))
    device = _named_plugin(above, "device") or str(KINDS["device"].default)
    tree, notices = layer_of(Path(file), [w for w in overrides if is_override(w)], device)
    return Layers(merge(tree, above), problems, notices)


def _named_plugin(tree: Tree, kind: str) -> str:
    """The plugin that a layer names for a kind; empty: none."""
    section = tree.get(kind)
    name = section.get("name") if isinstance(section, dict) else None
    return name.value if isinstance(name, Leaf) and isinstance(name.value, str) else ""


def composed(plugins: Mapping[str, Any]) -> type[RunSettings]:
    """The settings class of a selection of plugins; the same sections give the same class, so settings compare."""
    return _composed(tuple((kind, plugins[kind].Config) for kind in RUN_KINDS if kind in plugins))


@lru_cache(maxsize=32)
def _composed(sections: tuple[tuple[str, type[Section]], ...]) -> type[RunSettings]:
    fields: dict[str, Any] = {kind: (cls, ...) for kind, cls in sections}
    return create_model("RunSettings", __base__=RunSettings, **fields)


def _sections(chosen: Selection) -> tuple[dict[str, Any], list[Problem]]:
    """Validated sections by name, and all problems."""
    tree, known = dict(chosen.tree), Known(known_keys(chosen.plugins), lambda key: _elsewhere(key, chosen))
    sections: dict[str, Any] = {}
    problems: list[Problem] = []

    def check(cls: type[Section], node: Leaf | Tree, key: str) -> Section | None:
        section, found = validate(cls, node, key, known)
        problems.extend(found)
        return section

    for name, cls in CORE_SECTIONS.items():
        sections[name] = check(cls, tree.pop(name, {}), name)
    for kind in RUN_KINDS:
        node = tree.pop(kind, {})
        if kind in chosen.plugins:
            own = {k: v for k, v in node.items() if k != "name"} if isinstance(node, dict) else {}
            sections[kind] = check(chosen.plugins[kind].Config, own, kind)
        else:
            problems += _unselected(kind, node)
            sections[kind] = None if not KINDS[kind].required else EmptyConfig()
    for section, kind in MANY.items():
        node = tree.pop(section, {})
        given = node if isinstance(node, dict) else {}
        if isinstance(node, Leaf) and node.value != {}:
            problems.append(node.place.problem(section, f"must be names or a mapping by name (got {node.value!r})"))
        named = {p.name: (p, name) for p in chosen.plugins[kind] for name in (*given, p.name) if _plain(name) == p.name}
        sections[section] = {
            name: check(plugin.Config, given.get(typed, {}), f"{section}.{typed}")
            for name, (plugin, typed) in named.items()
        }
    for name, node in tree.items():
        problems += unknown_section(name, node, known)
    return sections, problems


def _plain(name: str) -> str:
    """The plugin's name in ``distribution:name``."""
    return name.rpartition(":")[2]


def _unselected(kind: str, node: Leaf | Tree) -> list[Problem]:
    """Keys below a kind that has no plugin; one problem per key."""
    if KINDS[kind].required:  # reported already: nobody chose one
        return []
    message = f"belongs to {kind} plugins; none is selected, add {KINDS[kind].flag} NAME"
    return [
        leaf.place.problem(".".join(path), message)
        for path, leaf in leaves(node, (kind,))
        if not (path == (kind,) and leaf.value in (None, {})) and path != (kind, "name")
    ]


def _elsewhere(key: str, chosen: Selection) -> str:
    """What to say of an unknown key that another plugin of the same kind has; empty: nothing."""
    kind, _, word = key.partition(".")
    if kind not in chosen.names:
        return ""
    for entry in registry.entries(kind):
        if entry.status != registry.OK or entry.name == _plain(chosen.names[kind]):
            continue
        try:
            plugin = registry.load(kind, entry.name)
        except PluginError:  # broken, and nobody named it
            continue
        if word in plugin.Config.model_fields:
            return f"belongs to {kind} {entry.name}; selected is {chosen.names[kind]}"
    return ""


def known_keys(plugins: Mapping[str, Any]) -> list[str]:
    """Every ``section.key`` of a selection of plugins."""
    keys = [f"{name}.{f}" for name, cls in CORE_SECTIONS.items() for f in cls.model_fields]
    for kind in RUN_KINDS:
        if kind in plugins:
            keys += [f"{kind}.name", *(f"{kind}.{f}" for f in plugins[kind].Config.model_fields)]
    for section, kind in MANY.items():
        keys += [f"{section}.{p.name}.{f}" for p in plugins.get(kind, ()) for f in p.Config.model_fields]
    return keys


def _located(problems: Iterable[Problem], tree: Tree) -> list[Problem]:
    found = []
    for problem in problems:
        path = problem.key.split(".")
        written = path[0] in tree  # else nothing in this section was, and no word of another one is to blame
        place = place_of(tree, path) if problem.source == "settings" and problem.key and written else None
        located = place.problem(problem.key, problem.message) if place else replace(problem)
        if problem.source == "settings" and place is None:
            located = Problem(COMMAND_LINE if path[0].startswith("-") else DEFAULT, 0, problem.key, problem.message)
        found.append(located)
    return found


def _provenance(settings: RunSettings, tree: Tree) -> dict[str, str]:
    """Key -> source, for every value of :func:`values`."""
    return {".".join(path): str(_place(tree, path) or DEFAULT) for path, _ in values(settings)}


def _place(tree: Tree, path: Sequence[str]) -> Place | None:
    node: Leaf | Tree | None = tree
    for part in path:
        if node is None or isinstance(node, Leaf):  # a leaf on the way is an empty section: all defaults
            return None
        node = node.get(part)
    return node.place if isinstance(node, Leaf) else None


def values(settings: RunSettings) -> list[tuple[tuple[str, ...], Any]]:
    """Every value as (path, plain value) in the order of the sections; mappings are spread, lists are not."""
    dump: dict[str, Any] = to_jsonable_python(settings.model_dump(), inf_nan_mode="constants")
    names: dict[str, str] = dump.pop("plugins")
    found: list[tuple[tuple[str, ...], Any]] = []

    def spread(path: tuple[str, ...], value: Any) -> None:
        if isinstance(value, dict) and value:
            for name, child in value.items():
                spread((*path, name), child)
        elif value != {} or len(path) > 1:
            found.append((path, value))

    for section, value in dump.items():
        if section in RUN_KINDS:
            if section not in names:
                continue
            found.append(((section, "name"), names[section]))
        spread((section,), value)
    return found
