"""Saved adapters outside a run: finding the plugin that reads one, loading it onto its base, merging it for good.

What an adapter is and how its files look is its plugin's matter. Importing this module is light.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore_checkpoint.directories import (
    ADAPTER_DIRECTORY,
    MODEL_MANIFEST,
    verify_directory,
)
from erniecore_system.files import check_links, read_json

from erniecore import registry
from erniecore.engine.fingerprint import KEY, model_digest
from erniecore.engine.models.config_json import is_quantized
from erniecore.errors import CheckpointError, PluginConflict, PluginNotFound, UsageError
from erniecore.host import assemble

if TYPE_CHECKING:
    from erniecore.plugin import Plugin
    from erniecore.types.model import Layer
    from erniecore.types.records import Json

#: in the provenance of an adapter: whether tokenizer and chat template of its training are beside it
TOKENIZER = "tokenizer"


def adapter_directory(source: Path) -> Path:
    """``source`` itself, or the ``adapter/`` of a run. Raises ``UsageError`` when there is no such directory."""
    inside = source / ADAPTER_DIRECTORY
    if inside.is_dir():
        return inside
    if source.is_dir():
        return source
    raise UsageError("no such adapter directory", found=str(source), fix="name a run, or the directory of an adapter")


def adapter_plugin(directory: Path) -> Plugin:
    """The installed plugin that reads the adapter in ``directory``: the one that wrote it, else the only one that says so.

    Raises:
        UsageError: it is a whole model. PluginNotFound: none does. PluginConflict: several do.
        CheckpointError: the files are not those that its manifest lists.
    """
    check_links(directory, CheckpointError)
    problems = verify_directory(directory)
    if problems:
        raise CheckpointError(
            "the adapter is not the one that was written: " + "; ".join(problems[:3]),
            where=str(directory),
            fix=f"fetch or train it again; if you changed it on purpose, remove {MODEL_MANIFEST}",
            code="ERN-K002",
        )
    writer = origin_of(directory).get("adapter")
    if isinstance(writer, str):
        return registry.load("adapter", writer)
    readers = [plugin for plugin in registry.loadable("adapter") if _reads(plugin, directory)]
    if len(readers) > 1:
        names = ", ".join(plugin.name for plugin in readers)
        raise PluginConflict(
            f"{len(readers)} installed adapters read this directory", where=str(directory), found=names
        )
    if not readers:
        raise _unread(directory)
    return readers[0]


def _unread(directory: Path) -> UsageError | PluginNotFound:
    """Why nobody reads an adapter there: mostly because it is a model, or a run that trained one."""
    model = next((d for d in (directory, directory / "model") if (d / "config.json").is_file()), None)
    if model is not None:
        return UsageError(
            "this is a whole model, not an adapter: there is nothing to merge or to put on a base",
            where=str(directory),
            expected="a run with --adapter, or the directory of an adapter",
            fix=f"use {model} as a model",
        )
    weights = sorted(path.name for path in directory.glob("*.safetensors"))
    return PluginNotFound(
        "no installed adapter plugin reads this directory",
        where=str(directory),
        found=", ".join(weights[:4]) or "no *.safetensors",
        expected="adapter_config.json and adapter_model.safetensors (PEFT), or lora_config.json (ERNIEKit)",
        fix="name the directory that holds these, or install the plugin of another kind of adapter",
        next="ernie plugins --kind adapter",
    )


def _reads(plugin: Plugin, directory: Path) -> bool:
    host = assemble({"adapter": plugin})
    return bool(host.hook.ernie_match_adapter(directory=directory))


def origin_of(directory: Path) -> Json:
    """``provenance`` of a directory's manifest; empty without one."""
    try:
        facts = read_json(directory / MODEL_MANIFEST)["provenance"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return facts if isinstance(facts, dict) else {}


def tokenizer_home(directory: Path, base: Path) -> Path:
    """Where tokenizer and chat template of the adapter in ``directory`` are: there, if a run left them, else in ``base``."""
    return directory if origin_of(directory).get(TOKENIZER) is True else base


def find_adapter(source: Path) -> Path | None:
    """The adapter that a run left in ``source``, or ``source`` itself if it is such a directory; None otherwise."""
    for directory in (source / ADAPTER_DIRECTORY, source):
        if "adapter" in origin_of(directory) and not (directory / "config.json").is_file():
            return directory
    return None


def base_of(directory: Path) -> Path:
    """The base that a run's adapter was trained on: one within the adapter's directory, or one that has the digest which the
    adapter notes. Raises ``UsageError`` when it is not there any more, has changed, or is some other directory."""
    origin = origin_of(directory)
    named, digests = str(origin.get("base") or ""), origin.get(KEY)
    inside = (directory / named).resolve()
    within = bool(named) and inside.is_dir() and inside.is_relative_to(directory.resolve())
    base = inside if within else Path(named)
    known = isinstance(digests, Mapping) and isinstance(digests.get("base"), str)
    if not named or not base.is_dir() or not (within or known):
        lost = not named or not base.is_dir()
        raise UsageError(
            "this adapter does not say where its base is"
            if lost
            else "this adapter names a directory outside of its own, and no digest of what is there",
            where=str(directory),
            found=named,
            fix=f"name the base as well: --model BASE --adapter {directory}",
        )
    if difference := other_base(digests, base):
        raise UsageError(
            "the base has changed since the adapter was trained on it",
            where=str(base),
            found=difference,
            fix="put back what it was, or name the base to use it as it is: --model BASE --adapter DIR",
            code="ERN-C021",
        )
    return base


def load_adapter(model: Layer, source: Path, name: str = "default") -> Layer:
    """``model`` with the adapter in ``source`` as ``name``, in eval mode; it is the one in use from here on.

    Raises:
        UsageError, PluginError: see :func:`adapter_directory`, :func:`adapter_plugin`. CheckpointError: it does not fit.
    """
    directory = adapter_directory(source)
    plugin = adapter_plugin(directory)
    host = assemble({"adapter": plugin})
    adapted: Layer = host.call(plugin, "ernie_load_adapter", model=model, directory=directory, name=name)
    adapted.eval()
    return adapted


def named_directory(word: str) -> tuple[str, Path]:
    """``NAME=DIR``, or ``DIR``, which is named after the directory, a run's ``adapter/`` after the run."""
    name, equals, directory = word.partition("=")
    if not equals or "/" in name:
        name, directory = "", word
    place = Path(directory).absolute()
    found = (place.parent if place.name == ADAPTER_DIRECTORY else place).name
    return name or found.replace(".", "-"), Path(directory)


def base_notes(directory: Path, base: Path) -> list[str]:
    """What to know of ``base``, which someone named, under the adapter in ``directory``: it is not what the adapter was trained
    on, or the adapter learned beside quantized weights and is used with original ones."""
    origin = origin_of(directory)
    quantizer, notes = origin.get("quantizer"), []
    if difference := base_difference(directory, base):
        notes = [
            f"ERN-C021: {base} is not the base that the adapter was trained on ({origin.get('base')}): {difference}"
        ]
    if quantizer and not is_quantized(base):
        notes.append(
            f"the adapter was trained on weights quantized by {quantizer}; here the base keeps its own, unquantized weights"
        )
    return notes


def base_difference(directory: Path, base: Path) -> str:
    """How ``base`` differs from what the adapter in ``directory`` was trained on; empty: not, or nobody knows."""
    return other_base(origin_of(directory).get(KEY), base)


def other_base(recorded: object, base: Path) -> str:
    """How ``base`` differs from what something was trained on that has these ``digests``; empty: not, or nobody knows."""
    expected = recorded.get("base") if isinstance(recorded, Mapping) else None
    found = model_digest(base) if isinstance(expected, str) else ""
    return "" if expected in (None, found) else f"config.json and weights are {found[:12]}…, not {str(expected)[:12]}…"
