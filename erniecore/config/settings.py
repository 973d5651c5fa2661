"""The settings class of a run: the sections of the core and of the chosen plugins, read from sources and validated.

:func:`composed` derives the class for a selection of plugins. pydantic-settings merges the sources; every section is
then validated as strict JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import SerializeAsAny, TypeAdapter, ValidationInfo, create_model, field_validator
from pydantic_core import to_jsonable_python
from pydantic_settings import SettingsConfigDict
from typing_extensions import TypedDict

from erniecore import sections
from erniecore.config.core import (
    CORE_SECTIONS,
    CheckpointSection,
    DataSection,
    EvalSection,
    LogSection,
    RunSection,
    TrainSection,
)
from erniecore.config.sources import DefaultSource, Sourced
from erniecore.config.strict import strict
from erniecore.config.tree import Leaf, Tree
from erniecore.kinds import MANY, RUN_KINDS
from erniecore.sections import Section

#: The sections that a source may have something for.
SECTIONS: tuple[str, ...] = (*CORE_SECTIONS, *RUN_KINDS, *MANY)


class RunSettings(Sourced):
    """All settings of a run; ``composed`` derives the class whose plugin sections have their real types.

    ``RunSettings(sources=..., plugins=...)`` reads it; sections that are given by name are taken as they are.
    A plugin's section is an instance of its ``Config``. ``plugins`` holds the names: kind -> name. A kind that this
    command does not need and nobody chose has an empty section and no name.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid")
    #: section -> what validates it; for a section with one sub-section per plugin, all of them together
    adapters: ClassVar[Mapping[str, TypeAdapter[Any]]] = {}

    run: RunSection
    data: DataSection
    train: TrainSection
    eval: EvalSection
    checkpoint: CheckpointSection
    log: LogSection
    device: SerializeAsAny[sections.DeviceConfig]
    parallel: SerializeAsAny[sections.ParallelConfig]
    launcher: SerializeAsAny[sections.LauncherConfig] = sections.LauncherConfig()
    model: SerializeAsAny[sections.ModelConfig]
    adapter: SerializeAsAny[sections.AdapterConfig] | None = None
    quantizer: SerializeAsAny[sections.QuantizerConfig] | None = None
    method: SerializeAsAny[sections.MethodConfig]
    optimizer: SerializeAsAny[sections.OptimizerConfig]
    schedules: dict[str, SerializeAsAny[Section]] = {}
    formats: dict[str, SerializeAsAny[Section]]
    rewards: dict[str, SerializeAsAny[sections.RewardConfig]]
    callbacks: dict[str, SerializeAsAny[Section]]
    plugins: dict[str, str]

    @field_validator(*SECTIONS, mode="before")
    @classmethod
    def _from_sources(cls, value: Any, info: ValidationInfo) -> Any:
        """A section as the sources have it, validated as strict JSON; a section given by name stays as it is."""
        name = str(info.field_name)
        if name not in cls.adapters or not is_written(value):
            return value
        return strict(cls.adapters[name], own_keys(name, value))


def is_written(value: Any) -> bool:
    """Whether a section comes from sources: a tree, and not the section object of a caller."""
    return isinstance(value, Leaf) or (
        isinstance(value, dict) and not any(isinstance(v, Section) for v in value.values())
    )


def own_keys(section: str, node: Leaf | Tree) -> Leaf | Tree:
    """What the section's class validates: without the plugin's ``name``, and plugins without their distribution."""
    if not isinstance(node, dict):
        return node
    if section in RUN_KINDS:
        return {key: child for key, child in node.items() if key != "name"}
    return {plain_name(key): child for key, child in node.items()} if section in MANY else node


def plain_name(name: str) -> str:
    """The plugin's name in ``distribution:name``."""
    return name.rpartition(":")[2]


def composed(plugins: Mapping[str, Any]) -> type[RunSettings]:
    """The settings class of a selection of plugins; the same sections give the same class, so settings compare."""
    own = tuple((kind, plugins[kind].Config) for kind in RUN_KINDS if kind in plugins)
    many = tuple((name, tuple((p.name, p.Config) for p in plugins.get(kind, ()))) for name, kind in MANY.items())
    return _composed(own, many)


@lru_cache(maxsize=32)
def _composed(
    own: tuple[tuple[str, type[Section]], ...], many: tuple[tuple[str, tuple[tuple[str, type[Section]], ...]], ...]
) -> type[RunSettings]:
    fields: dict[str, Any] = {kind: (cls, ...) for kind, cls in own}
    result: type[RunSettings] = create_model("RunSettings", __base__=RunSettings, **fields)
    typed_dict: Any = TypedDict
    adapters: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(cls) for name, cls in (*CORE_SECTIONS.items(), *own)}
    for name, parts in many:
        adapters[name] = TypeAdapter(typed_dict(name, dict(parts), total=False))
    result.adapters = adapters
    return result


def default_source(plugins: Mapping[str, Any]) -> DefaultSource:
    """The sections of the core and of a selection of plugins, empty: their classes hold the defaults."""
    sections: Tree = {name: {} for name in (*CORE_SECTIONS, *(kind for kind in RUN_KINDS if kind in plugins))}
    many: Tree = {name: {p.name: {} for p in plugins.get(kind, ())} for name, kind in MANY.items()}
    return DefaultSource({**sections, **many})


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
