"""Quantizes a model directory of any size: layer by layer, each read, packed, measured and written before the next. What is
finished stays when the command is killed, and the same command goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api import Plugin
from erniecore.api.installation import find
from erniecore.api.quantization import apply, check_packed, model_digest, write_by_layer
from erniecore.api.quantizer import QuantizerCapability
from erniecore_quantize.losses import Loss, packed_weights
from erniecore_quantize.resumable import resumable_directory

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore.api.model import ModelBundle


def can_stream(plugin: Plugin) -> bool:
    """Whether the quantizer packs one weight after another, without seeing the model compute."""
    return QuantizerCapability.EMPTY in plugin.capabilities and QuantizerCapability.CALIBRATE not in plugin.capabilities


def stream(
    bundle: ModelBundle, source: Path, out: Path, plugin: Plugin, config: Any, dtype: str
) -> tuple[int, list[Loss], list[str]]:
    """Write ``bundle``, an empty model of the directory ``source``, packed by ``plugin``: bytes of the weights, the error of each
    packed weight with the worst first, and notes.

    Raises:
        CheckpointError: as ``resumable_directory``; a damaged source. NumericsError: weights that are not finite.
    """
    before = dict(bundle.model.named_parameters())
    model = apply(plugin, config, bundle.model)
    check_packed(model)
    entry = find("quantizer", plugin.name)
    facts = {
        "source": model_digest(source),
        "quantizer": f"{plugin.name} of {entry.distribution} {entry.version}",
        "settings": config.model_dump(mode="json"),
    }
    with resumable_directory(out, facts) as progress:
        each = measuring(model, before)
        num_bytes = write_by_layer(replace(bundle, model=model), progress, plugin, config, dtype, each)
        entries = [entry for file in progress.files.values() for entry in file["layers"].values()]
        found = {entry["name"]: Loss(**_read(entry)) for entry in entries}
    return num_bytes, sorted(found.values(), key=lambda loss: loss.sqnr_db), progress.notes


def measuring(model: Any, before: dict[str, Tensor]) -> Callable[[str], Mapping[str, Any]]:
    """What ``write_by_layer`` tells of every layer: the error of the weight that was packed in it, as JSON; the original in
    ``before`` is forgotten."""
    packed = {weight.name.removesuffix(".weight"): weight for weight in packed_weights(model)}

    def each(layer: str) -> Mapping[str, Any]:
        weight = packed.pop(layer, None)  # again where a file ends between its tensors
        if weight is None:
            return {}
        original = before.pop(weight.name)
        loss = weight.loss(original)
        original._clear_data()
        return {**loss._asdict(), "sqnr_db": None if math.isinf(loss.sqnr_db) else loss.sqnr_db}

    return each


def _read(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a loss from its JSON."""
    ratio = math.inf if entry["sqnr_db"] is None else entry["sqnr_db"]
    return {**entry, "shape": tuple(entry["shape"]), "sqnr_db": ratio}
