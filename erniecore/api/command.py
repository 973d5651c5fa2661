"""For command plugins: the options that commands of ``ernie`` share, their output, and loading settings. Light; what needs the
settings code is imported when it is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.cli.group import MultiValueCommand, new_group
from erniecore.cli.options import (
    NOTHING,
    Arguments,
    Chosen,
    JsonOption,
    RayOption,
    opens_models,
    settings_file,
    split_arguments,
    split_files,
    takes,
)
from erniecore.cli.render import note, show, show_error, show_fields, show_json, show_table, use_color
from erniecore.errors import CODES, did_you_mean
from erniecore.kinds import FLAG_KINDS

if TYPE_CHECKING:
    from erniecore.config.compose import LoadedSettings as LoadedSettings
    from erniecore.plugin import Plugin
    from erniecore.sections import Section
    from erniecore.types.layouts import LayoutSpace
    from erniecore.types.planned_run import PlannedRun
    from erniecore.types.shape import DecoderShape
    from erniecore.types.text import Tokenizer

__all__ = [
    "CODES",
    "NOTHING",
    "Chosen",
    "JsonOption",
    "RayOption",
    "Arguments",
    "MultiValueCommand",
    "flag_names",
    "settings_file",
    "core_commands",
    "did_you_mean",
    "layout_spaces",
    "load_settings",
    "loadable_plugins",
    "new_group",
    "note",
    "opens_models",
    "plugin_settings",
    "show_error",
    "open_tokenizer",
    "planned_run",
    "read_yaml",
    "show",
    "show_fields",
    "show_json",
    "show_table",
    "smaller_settings",
    "split_files",
    "split_arguments",
    "store_text",
    "takes",
    "use_color",
]


def core_commands() -> frozenset[str]:
    """Names of the core's own commands, which no plugin can have."""
    from erniecore.cli.app import COMMANDS

    return frozenset(COMMANDS)


def flag_names() -> tuple[str, ...]:
    """Names of the flags that choose plugins, for ``takes``."""
    return tuple(kind.name for kind in FLAG_KINDS)


def load_settings(
    file: Path | None, overrides: Sequence[str] = (), flags: Mapping[str, Any] = NOTHING, *, complete: bool = True
) -> LoadedSettings:
    """The settings of a run, from its file, ``section.key=value`` overrides and flags.

    Args:
        complete: refuse settings without a model or a method, which a run cannot do without.

    Raises:
        ErnieError: settings that are wrong, each with its place.
    """
    from erniecore.config import compose

    return compose.load(file, overrides, flags, require=compose.REQUIRED if complete else ())


def planned_run(loaded: LoadedSettings, processes: int = 0) -> tuple[PlannedRun, list[str]]:
    """A run as its settings describe it, with notes for the user; starts nothing and imports no paddle. A published model that
    is not here is planned by its recipe, and a note says so.

    Args:
        processes: of the run; 0: as many as the parallel strategy needs.

    Raises:
        ErnieError: impossible settings, an unreadable model directory.
    """
    from erniecore.config.absent_model import plannable
    from erniecore.engine import entry

    loaded, note = plannable(loaded)
    return entry.planned_run(loaded, processes=processes), [*loaded.notes, *([note] if note else [])]


def smaller_settings(loaded: LoadedSettings, run: PlannedRun) -> Iterator[tuple[str, ...]]:
    """Settings with which a run may need less memory, as overrides, those that cost least first."""
    from erniecore.engine.preparation.smaller_runs import changes

    return changes(loaded.settings, run.device)


def loadable_plugins(kind: str) -> Iterator[Plugin]:
    """Every installed plugin of a kind that loads, by name."""
    from erniecore import registry

    return registry.loadable(kind)


def layout_spaces(shape: DecoderShape) -> Iterator[tuple[str, LayoutSpace]]:
    """(strategy, the layouts that it can run of such a model) of every installed parallel strategy that publishes them."""
    from erniecore.engine.preparation import forecast

    return forecast.layout_spaces(shape)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file. Raises ``OSError`` or ``ValueError``."""
    from erniecore.config.yaml import parse

    return parse(path.read_text(encoding="utf-8"), str(path)).data


def store_text(path: Path, text: str, doing: str) -> None:
    """Replace a file as a whole, with the directories above it. Raises ``CheckpointError`` that says what was being done."""
    from erniecore_checkpoint.files import translated
    from erniecore_system.durable import replace_file

    with translated(path, doing):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())


def plugin_settings(cls: type[Section], given: Sequence[str] | Mapping[str, Any], name: str = "") -> Section:
    """The section ``name`` of a plugin with ``KEY=VALUE`` arguments, or values, over its defaults. Raises ``ConfigError``."""
    from erniecore.config.problems import section_from
    from erniecore.config.sources import from_arguments
    from erniecore.config.tree import Leaf, Place

    if isinstance(given, Mapping):
        return section_from(cls, {key: Leaf(value, Place("options")) for key, value in given.items()}, name)
    return section_from(cls, from_arguments(given), name)


def open_tokenizer(directory: Path, adapter: Path | None = None) -> tuple[Tokenizer, int]:
    """The tokenizer of a model directory or a run as its model plugin reads it, and the model's vocabulary size (0: not known).

    Args:
        adapter: directory of an adapter or run on it, whose tokenizer and chat template come first.
    """
    from erniecore.engine.models.bundles import open_tokenizer
    from erniecore.engine.models.located import locate

    located = locate(directory)
    if adapter is not None:
        located = located.with_adapter(adapter)
    tokenizer, architecture = open_tokenizer(located.path, located.tokenizer_home)
    return tokenizer, int(architecture.get("vocab_size", 0))
