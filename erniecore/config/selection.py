"""Pass 1: read the names from all sources and load those plugins. Looks at no other key.

``model: DIR`` takes the plugin from ``config.json``, and ``model.size`` the recipe of the model: both are sources too,
above and below what the user wrote.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erniecore_catalog import install_command
from erniecore_catalog.known import reader_of
from erniecore_system.files import check_links, read_json

from erniecore import registry
from erniecore.capabilities import MethodCapability
from erniecore.config.core import SCHEDULES
from erniecore.config.hubs import with_hubs
from erniecore.config.sources import DirectorySource, Source, merged
from erniecore.config.tree import COMMAND_LINE, Leaf, Place, Tree
from erniecore.errors import (
    CheckpointError,
    ConfigError,
    PluginConflict,
    PluginError,
    PluginNotFound,
    Problem,
    did_you_mean,
    shorten,
)
from erniecore.host import BUILTIN_CALLBACKS
from erniecore.kinds import KINDS, RUN_KINDS
from erniecore.plugin import ModelPlugin, Plugin


@dataclass
class Selection:
    """What pass 1 found.

    Attributes:
        sources: from the highest to the lowest, the recipe included. tree: the same, merged.
        plugins: kind -> the plugin; for kinds of which a run may have several a list. names: kind -> name as it was given.
        places: where each name was given. problems: kinds that nobody chose although they are required.
    """

    sources: tuple[Source, ...]
    tree: Tree
    plugins: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def select(sources: Sequence[Source], required: Sequence[str]) -> Selection:
    """Load the plugins that ``sources`` name, the highest first; kinds in ``required`` that nobody chose are problems.

    Raises:
        PluginError: a name that is not installed, or a plugin that is broken.
        CheckpointError: a model directory without a usable config.json.
        ConfigError: a name that is not text, or an unknown recipe.
    """
    sources = with_hubs(sources)
    chosen = Selection(sources, merged(sources))
    _choose_model(chosen)
    if (size := _text(_section(chosen.tree, "model").get("size"), "model.size")) and "model" in chosen.plugins:
        from erniecore.config.recipes import recipe_source

        chosen.sources = (*chosen.sources, recipe_source(chosen.plugins["model"], chosen.names["model"], *size))
        chosen.tree = merged(chosen.sources)
    if "method" in required and (path := _text(_section(chosen.tree, "model").get("path"), "model.path")):
        from erniecore.config.packed_base import quantizer_source

        packed = quantizer_source(Path(path[0]), chosen.tree.get("quantizer"))
        chosen.sources = (*chosen.sources, *([packed] if packed else []))
        chosen.tree = merged(chosen.sources)
    for kind in RUN_KINDS:
        if kind not in chosen.plugins:
            _choose(chosen, kind)
        if kind in required and kind not in chosen.plugins:
            names = ", ".join(e.name for e in registry.entries(kind)) or "none"
            flag = f"{KINDS[kind].flag} NAME" + (" or DIR" if kind == "model" else "")
            message = f"no {kind} is selected; add {flag} (installed: {names})"
            chosen.problems.append(Problem(COMMAND_LINE, 0, "", message))
    chosen.plugins["callback"] = [
        _load("callback", name, place) for name, place in _many(chosen.tree, "callbacks", BUILTIN_CALLBACKS)
    ]
    chosen.plugins["format"] = _formats(chosen.tree)
    _choose_schedule(chosen)
    _choose_rewards(chosen, "method" in required)
    return chosen


def _choose_rewards(chosen: Selection, required: bool) -> None:
    """The reward functions that ``rewards`` names. A run's method with the capability needs one; others refuse them."""
    named = _many(chosen.tree, "rewards")
    chosen.plugins["reward"] = [_load("reward", name, place) for name, place in named]
    method = chosen.plugins.get("method")
    if method is None:
        return
    uses = MethodCapability.REWARDS in method.capabilities
    if uses and not named and required:
        names = ", ".join(e.name for e in registry.entries("reward")) or "none"
        what = f"method {method.name} learns from rewards, and no reward function is selected"
        message = f"{what}; add --reward NAME (installed: {names})"
        chosen.problems.append(Problem(COMMAND_LINE, 0, "", message))
    for name, place in named if not uses else ():
        message = f"method {method.name} does not use reward functions; remove it, or choose a method such as grpo"
        chosen.problems.append((place or Place("settings")).problem(f"rewards.{name}", message))


def _choose_schedule(chosen: Selection) -> None:
    """The plugin that ``train.schedule`` names, unless it is built in; no other has settings in ``schedules``."""
    name, place = _text(_section(chosen.tree, "train").get("schedule"), "train.schedule") or (SCHEDULES[0], None)
    known = [*SCHEDULES, *(entry.name for entry in registry.entries("schedule"))]
    chosen.plugins["schedule"] = []
    if place is not None and name not in SCHEDULES:
        if ":" not in name and name not in known:
            message = f"no schedule has this name; {did_you_mean(name, known, 'there are ' + ', '.join(known))}"
            chosen.problems.append(place.problem("train.schedule", f"{message} (got {name!r})"))
            return
        chosen.plugins["schedule"] = [_load("schedule", name, place)]
    for other, written in _many(chosen.tree, "schedules"):
        if other.rpartition(":")[2] not in [plugin.name for plugin in chosen.plugins["schedule"]]:
            message = f"train.schedule is {name}; remove this, or write train.schedule={other}"
            chosen.problems.append((written or Place("settings")).problem(f"schedules.{other}", message))


def _load(kind: str, name: str, place: Place | None) -> Plugin:
    """``registry.load`` whose errors say where the name was written."""
    try:
        return registry.load(kind, name)
    except PluginError as error:
        if place is not None and isinstance(error, PluginNotFound | PluginConflict):
            error.where = f"{place}: {place.argument or kind}"
        raise


def _section(tree: Tree, kind: str) -> Tree:
    node = tree.get(kind)
    return node if isinstance(node, dict) else {}


def _text(node: Leaf | Tree | None, key: str) -> tuple[str, Place] | None:
    """A leaf's text and place; ``None`` when it is absent, null or empty."""
    if node is None or (isinstance(node, Leaf) and node.value in (None, "")):
        return None
    if isinstance(node, Leaf) and isinstance(node.value, str):
        return node.value, node.place
    if isinstance(node, Leaf):
        raise ConfigError([node.place.problem(key, f"must be text (got {node.value!r})")])
    place = _first(node) or Place("settings")
    raise ConfigError([place.problem(key, "must be text, not a mapping")])


def _choose(chosen: Selection, kind: str) -> None:
    node = chosen.tree.get(kind)
    if isinstance(node, Leaf) and node.value not in (None, {}):
        message = f"must be a name or a mapping with a name (got {node.value!r})"
        raise ConfigError([node.place.problem(kind, message)])
    given = _text(_section(chosen.tree, kind).get("name"), f"{kind}.name")
    default = KINDS[kind].default
    if given is None and default is None:
        return
    name, place = given if given is not None else (str(default), None)
    chosen.plugins[kind] = _load(kind, name, place)
    chosen.names[kind] = name
    if place is not None:
        chosen.places[kind] = place


def _choose_model(chosen: Selection) -> None:
    """``model.name``, which may also be a directory; without one, what reads ``model.path``."""
    section = _section(chosen.tree, "model")
    given = _text(section.get("name"), "model.name")
    if given is not None and looks_like_directory(given[0]):
        path, node = given, section["name"]
    elif given is None and (found := _text(section.get("path"), "model.path")) is not None:
        path, node = found, section["path"]
    else:
        _choose(chosen, "model")
        return
    name = Leaf(plugin_for_directory(Path(path[0])), Place(str(Path(path[0]) / "config.json")))
    chosen.sources = (DirectorySource({"model": {"name": name, "path": node}}), *chosen.sources)
    chosen.tree = merged(chosen.sources)
    _choose(chosen, "model")


def looks_like_directory(name: str) -> bool:
    """Whether ``--model`` was given a path: it has a slash or is a directory, and no plugin has that name."""
    if any(name == e.name for e in registry.entries("model")):
        return False
    return "/" in name or "\\" in name or name in (".", "..", "~") or os.path.isdir(name)


def _no_model(directory: Path) -> CheckpointError:
    """The error for a directory without config.json, which may be the name of a model on a hub."""
    what, fix, hub = "no config.json in the model directory", "give a plugin name or a model directory", ""
    if os.path.isfile(directory / "model" / "config.json"):
        fix = f"did you mean {directory / 'model'}?"
    elif not os.path.isdir(directory):
        what = "no such model directory, and nothing is downloaded that does not name a hub"
        fix = f"{fix}; to have a published one fetch its config.json, safetensors and tokenizer"
        if _HUB_ID.fullmatch(str(directory)) and not os.path.isdir(directory.parent):
            hub = f"ernie model pull hf:{directory}"
    return CheckpointError(what, where=str(directory), fix=fix, next=hub, code="ERN-K020")


def plugin_for_directory(directory: Path) -> str:
    """The name of the model plugin whose ``model_types`` hold the ``model_type`` of ``directory/config.json``.

    Raises:
        CheckpointError: no such directory, no readable config.json, no ``model_type``.
        PluginNotFound: no installed plugin reads that type. PluginConflict: several do.
    """
    file = directory / "config.json"
    if not os.path.isfile(file):
        raise _no_model(directory)
    check_links(directory, CheckpointError)
    try:
        model_type = read_json(file)["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _bad_config(file, error) from error
    if not isinstance(model_type, str):
        raise CheckpointError(
            "model_type must be text", where=str(file), found=shorten(model_type), fix=_FETCH_AGAIN, code="ERN-K021"
        )
    readers: dict[str, list[str]] = {}
    for plugin in registry.loadable("model"):
        for known in plugin.model_types if isinstance(plugin, ModelPlugin) else ():
            readers.setdefault(known, []).append(plugin.name)
    names = readers.get(model_type, [])
    if len(names) > 1:
        raise PluginConflict(
            f"{len(names)} installed model plugins read model_type {model_type!r}",
            where=str(file),
            found=", ".join(names),
            fix=f"name one (--model {names[0]} model.path={directory}), or hide the others with ERNIE_PLUGINS",
        )
    if not names:
        home = reader_of(model_type)
        raise PluginNotFound(
            f"no installed model plugin reads model_type {model_type!r}",
            kind="model",
            where=str(file),
            expected="one of " + ", ".join(sorted(readers)) if readers else "",
            fix=f"{home} does" if home else "",
            next=install_command(home) if home else "ernie plugins --kind model",
        )
    return names[0]


#: owner and name, as hubs have them
_HUB_ID = re.compile(r"[\w-]+/[\w.-]+")
_FETCH_AGAIN = "write or fetch the model directory again"


def _bad_config(file: Path, error: Exception) -> CheckpointError:
    """Why a config.json does not say which model it is of."""
    if isinstance(error, KeyError):
        message, found = "config.json has no model_type", ""
        fix = 'add the key, such as "model_type": "ernie4_5", or name the plugin: --model NAME model.path=DIR'
    else:
        message, found = "config.json is no JSON object", str(error) if isinstance(error, ValueError) else ""
        fix = _FETCH_AGAIN
    return CheckpointError(message, where=str(file), found=found, fix=fix, code="ERN-K021")


def _many(tree: Tree, section: str, always: Sequence[str] = ()) -> list[tuple[str, Place | None]]:
    """Names of a section with one sub-section per plugin, each with its place; ``always`` come first."""
    node = _section(tree, section)
    named = [(name, _first(child)) for name, child in node.items() if name not in always]
    return [*((name, None) for name in always), *named]


def _first(node: Leaf | Tree) -> Place | None:
    while isinstance(node, dict):
        node = next(iter(node.values()))
    return node.place


def _formats(tree: Tree) -> list[Plugin]:
    """The formats that sources, ``data.format`` or ``formats`` name. What else is installed, and may be found by ``auto``, is no
    part of the settings: they stay the same when it comes or goes."""
    names: dict[str, Place | None] = dict(_many(tree, "formats"))
    data = _section(tree, "data")
    default = _text(data.get("format"), "data.format") or (KINDS["format"].default or "", None)
    names.setdefault(*default)
    for split in ("train", "eval"):
        leaf = data.get(split)
        sources = leaf.value if isinstance(leaf, Leaf) and isinstance(leaf.value, list) else []
        for source in sources:
            name = source.get("format") if isinstance(source, dict) else None
            if name and isinstance(name, str) and isinstance(leaf, Leaf):
                names.setdefault(name, leaf.place)
    return [_load("format", name, place) for name, place in names.items()]
