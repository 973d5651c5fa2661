"""Saved adapters outside a run: finding the plugin that reads one, loading it onto its base, merging it for good.

What an adapter is and how its files look is its plugin's matter. Importing this module is light.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from erniecore import registry
from erniecore.checkpoint.directories import (
    ADAPTER_DIRECTORY,
    MODEL_MANIFEST,
    atomic_directory,
    check_target,
    verify_directory,
)
from erniecore.durable import file_hash
from erniecore.engine.models.quantized import is_quantized
from erniecore.errors import CheckpointError, NumericsError, PluginConflict, PluginNotFound, UsageError
from erniecore.host import assemble

if TYPE_CHECKING:
    from erniecore.plugin import Plugin
    from erniecore.types import Json, ModelBundle
    from erniecore.types.model import Layer
    from erniecore.types.samples import Array

#: merged and unmerged logits may differ by this share of the largest one
TOLERANCE = 1e-4


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
        PluginNotFound: none does. PluginConflict: several do.
        CheckpointError: the files are not those that its manifest lists.
    """
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
        raise PluginNotFound(
            "no installed adapter plugin reads this directory",
            where=str(directory),
            next="ernie plugins --kind adapter",
        )
    return readers[0]


def _reads(plugin: Plugin, directory: Path) -> bool:
    host = assemble({"adapter": plugin})
    return bool(host.hook.ernie_match_adapter(directory=directory))


def origin_of(directory: Path) -> Json:
    """``provenance`` of a directory's manifest; empty without one."""
    try:
        facts = json.loads((directory / MODEL_MANIFEST).read_bytes())["provenance"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return facts if isinstance(facts, dict) else {}


def find_adapter(source: Path) -> Path | None:
    """The adapter that a run left in ``source``, or ``source`` itself if it is such a directory; None otherwise."""
    for directory in (source / ADAPTER_DIRECTORY, source):
        if "adapter" in origin_of(directory) and not (directory / "config.json").is_file():
            return directory
    return None


def base_of(directory: Path) -> Path:
    """The base that a run's adapter was trained on. Raises ``UsageError`` when it is not there any more."""
    base = origin_of(directory).get("base")
    if not isinstance(base, str) or not base or not Path(base).is_dir():
        raise UsageError(
            "this adapter does not say where its base is",
            where=str(directory),
            found=str(base or ""),
            fix="give both: --model BASE --adapter DIR",
        )
    return Path(base)


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


class Merged(NamedTuple):
    """What a merge did.

    Attributes:
        path: the merged model. difference: largest difference of merged and unmerged logits on the probe prompts, in
            float32; ``largest``: the largest logit there. dtype: of the written weights. notes: for the user.
    """

    path: Path
    difference: float
    largest: float
    dtype: str
    notes: list[str]


def merge_directory(source: Path, base: Path, out: Path) -> Merged:
    """Write ``base`` with the adapter in ``source`` merged into its weights; opens the ``cpu`` device.

    Merged in float32, compared with the unmerged model, then stored in the dtype of ``base`` and read back.

    Raises:
        UsageError: already merged into this base, or an adapter that cannot be merged.
        NumericsError: merged and unmerged logits differ by more than ``TOLERANCE`` of the largest.
        CheckpointError: the target is not free, something is damaged or does not fit.
    """
    from erniecore.engine.models.bundles import described, load_bundle, open_device

    directory = adapter_directory(source)
    check_target(out)
    plugin, mark = adapter_plugin(directory), fingerprint(directory)
    if "merge" not in plugin.capabilities:
        raise UsageError("this adapter cannot be merged", where=str(directory), found=plugin.name)
    merged_before = _merged_into(base)
    if mark in merged_before:
        raise UsageError("this adapter is merged into this base already", where=str(base), fix="use it as it is")
    notes = open_device() + _other_base(directory, base)
    # these import paddle, which reads the device's environment when it is imported
    from erniecore.engine.exporting.export import verify_export
    from erniecore.engine.models.model_files import write_model_files

    opened = load_bundle(base)
    bundle = opened.bundle
    bundle, difference, largest = _merge(bundle, directory)
    provenance = {**bundle.provenance, "base": str(base), "adapter": plugin.name, "merged": [*merged_before, mark]}
    bundle = described(bundle, provenance, bundle.generation)
    with atomic_directory(out) as target:
        write_model_files(bundle, target, dtype=opened.dtype)
        verify_export(bundle, target, opened.dtype)
    return Merged(out, difference, largest, opened.dtype, [*notes, *opened.notes])


def _merge(bundle: ModelBundle, directory: Path) -> tuple[ModelBundle, float, float]:
    """The merged model, which takes the place of the given one; largest difference, largest logit."""
    import numpy as np

    from erniecore.engine.exporting.export import logits, prompts
    from erniecore.engine.models.score_head import completed

    probes = prompts(bundle)
    model: Any = load_adapter(bundle.model, directory)
    before: Sequence[Array] = [logits(model, probe) for probe in probes]
    model.merge()
    difference = max(float(np.abs(logits(model, p) - b).max()) for p, b in zip(probes, before, strict=True))
    largest = max(float(np.abs(b).max()) for b in before)
    if not difference <= TOLERANCE * max(largest, 1.0):
        raise NumericsError(
            "merged and unmerged model differ; nothing was written",
            where=str(directory),
            found=f"logits differ by {difference:.3g}, the largest is {largest:.3g}",
            expected=f"at most {TOLERANCE * max(largest, 1.0):.3g}",
        )
    return completed(replace(bundle, model=model.unload())), difference, largest


def fingerprint(directory: Path) -> str:
    """sha256 of the adapter's weight files, as one word; names an adapter wherever it lies."""
    hashes = [file_hash(path) for path in sorted(directory.glob("*.safetensors"))]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def _merged_into(base: Path) -> list[str]:
    merged = origin_of(base).get("merged")
    return [str(mark) for mark in merged] if isinstance(merged, list) else []


def quantized_base(directory: Path, base: Path) -> list[str]:
    """A note when the adapter learned beside quantised weights and is used with original ones."""
    quantizer = origin_of(directory).get("quantizer")
    if not quantizer or is_quantized(base):
        return []
    return [
        f"the adapter was trained on weights quantised by {quantizer}; here the base keeps its own, unquantised weights"
    ]


def _other_base(directory: Path, base: Path) -> list[str]:
    trained_on, notes = origin_of(directory).get("base"), quantized_base(directory, base)
    if not trained_on or Path(str(trained_on)).absolute() == base.absolute():
        return notes
    return [*notes, f"the adapter was trained on {trained_on}, not on {base}"]
