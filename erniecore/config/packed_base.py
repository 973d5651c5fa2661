"""A base whose weights are packed brings its quantizer: config.json of a directory that ``ernie quantize`` wrote names the plugin
and its settings, and a run on it needs no ``--quantizer``. No paddle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from erniecore_system.files import read_json

from erniecore import registry
from erniecore.capabilities import QuantizerCapability
from erniecore.config.sources import DirectorySource
from erniecore.config.tree import Leaf, Place, Tree
from erniecore.errors import ConfigError
from erniecore.sections import Section
from erniecore.types.records import Json

#: key of config.json; ``quant_method`` of ours
QUANTIZATION, METHOD = "quantization_config", "erniecore"


def quantizer_of(architecture: Json) -> str:
    """The quantizer that wrote a model with this config.json; empty: none of ours."""
    found = architecture.get(QUANTIZATION)
    if not isinstance(found, dict) or found.get("quant_method") != METHOD:
        return ""
    return str(found.get("quantizer", ""))


def stored_settings(architecture: Json) -> dict[str, Any]:
    """The quantizer's settings in a config.json of ours."""
    return dict(architecture[QUANTIZATION].get("settings") or {})


def quantizer_source(directory: Path, given: Leaf | Tree | None) -> DirectorySource | None:
    """The section ``quantizer`` of a run on ``directory``; None where its weights are not packed. ``given``: what the user wrote.

    Raises:
        PluginNotFound: the quantizer is not installed. ConfigError: its layers carry no gradients, or the user names another one.
    """
    file = directory / "config.json"
    try:
        architecture = read_json(file)
    except (OSError, ValueError):  # whoever needs the model says so
        return None
    name = quantizer_of(architecture) if isinstance(architecture, dict) else ""
    if not name:
        return None
    known = registry.load("quantizer", name).capabilities
    if QuantizerCapability.TRAIN not in known or QuantizerCapability.TRAINABLE in known:
        reason = "updates unrounded weights" if QuantizerCapability.TRAIN in known else "has no backward pass"
        fix = f"name the original model; --quantizer {name if QuantizerCapability.TRAIN in known else 'wint4'} packs it"
        raise ConfigError.at("model.path", f"this directory holds weights quantized by {name}, which {reason}; {fix}")
    chosen = given.get("name") if isinstance(given, dict) else None
    if isinstance(chosen, Leaf) and chosen.value not in (None, "", name):
        message = f"{directory} is quantized by {name}; leave --quantizer out, or name the original model"
        raise ConfigError([chosen.place.problem("quantizer.name", message)])
    place = Place(str(file))
    section: Tree = {key: Leaf(value, place) for key, value in {**stored_settings(architecture), "name": name}.items()}
    return DirectorySource({"quantizer": section})


def check_packed_as(architecture: Json, quantizer: Section | None) -> None:
    """Raises ``ConfigError`` where ``quantizer`` has other settings than those that the packed weights were made with."""
    if not quantizer_of(architecture) or quantizer is None:
        return
    asked, stored = quantizer.model_dump(mode="json"), stored_settings(architecture)
    for key in stored:
        if asked.get(key) != stored[key]:
            message = f"the weights of this model are packed with {stored[key]!r}, not {asked.get(key)!r}; leave it out"
            raise ConfigError.at(f"quantizer.{key}", message)
