"""A model directory with new, random weights: a size, a tokenizer and a seed. Nothing is trained here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import erniecore
from erniecore.api import Plugin, UsageError, building
from erniecore.api.command import did_you_mean
from erniecore.api.model import Tokenizer

#: the recipe that ``key=value`` sizes start from
BASE_RECIPE = "tiny"
DTYPES = ("float32", "bfloat16", "float16")
#: as that of public model directories
SHARD_SIZE = "5GB"
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


class NewModel(NamedTuple):
    """The result of :func:`init_model`."""

    path: Path
    parameters: int
    architecture: Mapping[str, Any]
    notes: list[str]


def init_model(
    name: str,
    size: str,
    tokenizer: Path,
    out: Path,
    *,
    seed_value: int = 42,
    template: str = "",
    dtype: str = "float32",
    shard_size: str = SHARD_SIZE,
) -> NewModel:
    """Write a model directory with random weights, made while they are written: memory is that of the largest tensors, not
    of the model. Opens the ``cpu`` device once everything has been checked.

    Args:
        name: of the model plugin. size: see :func:`parse_size`.
        tokenizer: directory with the tokenizer's files; gives the vocabulary and the control ids.
        out: new, empty, or a model directory of ours.
        seed_value: the same as ``run.seed``: a run that starts from the size alone gets the same weights.
        template: as ``model.template``; empty: the one that the size names, else what the model plugin takes for the
            tokenizer's directory.
        dtype: ``float32``, ``bfloat16`` or ``float16``; tensors that must stay float32 do.
        shard_size: most bytes of one file of weights, such as ``5GB`` or ``500MB``; a larger tensor has a file of its own.

    Raises:
        UsageError: a size that the model does not have, or no such dtype or size of shards. CheckpointError: ``out`` is not
            free, no space on the disk, or a vocabulary smaller than the tokenizer's.
    """
    most, dtype = parse_bytes(shard_size, "--shard-size"), known_dtype(dtype)
    building.check_target(out)
    plugin = building.model_plugin(name)
    architecture, given, usual = parse_size(plugin, size)
    tokens = building.read_tokenizer(plugin, architecture, tokenizer, template or usual)
    architecture = fit_tokenizer(architecture, tokens, keep=given)
    building.check_vocabulary(architecture, tokens, str(tokenizer))
    warnings = building.open_device()
    from erniecore.api.model_files import random_tensors, save_model_directory, state_of

    settings = {**_recipe(plugin, size)[0], "architecture": architecture, "template": template or usual}
    bundle, notes = building.build_bundle(plugin, settings, tokenizer, "float32")
    made_by = f"ernie model init, erniecore {erniecore.__version__}"
    provenance = {"name": f"{name} {size}", "made by": made_by, "weights": "random", "seed": seed_value}
    bundle = building.with_provenance(bundle, provenance, {})
    tensors = random_tensors(bundle.model, bundle.adapter, seed_value, dtype)
    save_model_directory(bundle, out, max_shard_bytes=most, dtype=dtype, tensors=tensors)
    count = sum(int(tensor.size) for tensor in state_of(bundle.model).values())
    return NewModel(out, count, bundle.architecture, [*warnings, *notes])


def known_dtype(name: str) -> str:
    """``name``. Raises ``UsageError`` unless weights can be written in it."""
    if name not in DTYPES:
        fix = did_you_mean(name, DTYPES)
        raise UsageError("no such dtype", where="--dtype", found=name, expected=" or ".join(DTYPES), fix=fix)
    return name


def parse_bytes(text: str, where: str) -> int:
    """``5GB``, ``1.5GiB`` or ``500000`` in bytes. Raises ``UsageError`` for anything else, and for less than one."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    unit = _UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None or float(found[1]) * unit < 1:
        raise UsageError("not a number of bytes", where=where, found=text, expected="a number with KB, MB, GB or GiB")
    return int(float(found[1]) * unit)


def parse_size(plugin: Plugin, size: str) -> tuple[dict[str, Any], frozenset[str], str]:
    """The architecture that ``size`` means, the keys that it sets itself, and the recipe's chat template (empty: none).

    Args:
        plugin: a model plugin with recipes.
        size: a recipe's name, or ``key=value,…`` on top of ``tiny``, or both: ``0.3b,num_hidden_layers=2``.

    Raises:
        UsageError: an unknown recipe or key (with the nearest), or a value of another type.
    """
    model, parts = _recipe(plugin, size)
    architecture = dict(model["architecture"])
    changes = dict(_pair(part, architecture) for part in parts)
    return {**architecture, **changes}, frozenset(changes), model.get("template", "")


def _recipe(plugin: Plugin, size: str) -> tuple[dict[str, Any], list[str]]:
    """The ``model`` section of the recipe that ``size`` begins with, and the ``key=value`` behind it."""
    known = building.recipes(plugin)
    parts = [part.strip() for part in size.split(",") if part.strip()]
    recipe = parts.pop(0) if parts and "=" not in parts[0] else BASE_RECIPE
    if recipe not in known:
        raise UsageError(
            f"model {plugin.name!r} has no size {recipe!r}",
            where="--size",
            expected="key=value or one of " + (", ".join(sorted(known)) or "none"),
            fix=did_you_mean(recipe, known),
        )
    return dict(building.parse_yaml(known[recipe], f"recipe {recipe}").data["model"]), parts


def _pair(part: str, architecture: Mapping[str, Any]) -> tuple[str, Any]:
    key, equals, text = part.partition("=")
    if not equals or not text:
        raise UsageError("a size is a name or key=value", where="--size", found=part)
    if key not in architecture:
        raise UsageError(
            f"this model has no {key!r}",
            where="--size",
            expected="one of " + ", ".join(sorted(architecture)),
            fix=did_you_mean(key, architecture),
        )
    value = building.parse_value(text, "--size")
    before = architecture[key]
    number = isinstance(before, float) and isinstance(value, int) and not isinstance(value, bool)
    if before is not None and type(value) is not type(before) and not number:
        raise UsageError(f"{key} must be {_KINDS.get(type(before), type(before).__name__)}", where="--size", found=part)
    return key, value


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def fit_tokenizer(architecture: Mapping[str, Any], tokenizer: Tokenizer, *, keep: frozenset[str]) -> dict[str, Any]:
    """``architecture`` with the vocabulary and control ids of ``tokenizer``, except for the keys in ``keep``."""
    from_tokenizer = {
        "vocab_size": tokenizer.vocab_size,
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
    }
    return {**architecture, **{k: v for k, v in from_tokenizer.items() if k not in keep}}
