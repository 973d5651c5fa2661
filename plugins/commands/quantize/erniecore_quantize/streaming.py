"""Quantizes a model directory of any size: layer by layer, each read, calibrated where the quantizer does that, packed, measured
and written before the next. What is finished stays when the command is killed, and the same command goes on.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from erniecore.api import Plugin
from erniecore.api.installation import find
from erniecore.api.quantization import apply, attach_finished, calibrated, check_packed, model_digest, write_by_layer
from erniecore.api.quantizer import CalibratedModel, QuantizerCapability
from erniecore_quantize.losses import Loss, packed_weights
from erniecore_quantize.resumable import resumable_directory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from paddle import Tensor

    from erniecore.api.model import ModelBundle


#: bytes of a file of calibrated weights: what a killed command does again took hours where usual files are full
_CALIBRATED_FILE = 500_000_000
#: a ratio that JSON does not have
_INFINITE = "infinite"


def can_stream(plugin: Plugin) -> bool:
    """Whether the quantizer packs one layer after another of a model that has no values."""
    return QuantizerCapability.EMPTY in plugin.capabilities


class Streamed(NamedTuple):
    """What was written.

    Attributes:
        model: the packed model, without values. num_bytes: of the weights. layers: the error of each packed weight, the worst
            first. notes: for the user.
    """

    model: Any
    num_bytes: int
    layers: list[Loss]
    notes: list[str]


def stream(
    bundle: ModelBundle,
    source: Path,
    out: Path,
    plugin: Plugin,
    config: Any,
    dtype: str,
    batches: Sequence[NDArray[np.int64]] | None = None,
) -> Streamed:
    """Write ``bundle``, an empty model of the directory ``source``, packed by ``plugin``, on calibration data where there are
    ``batches``.

    Raises:
        CheckpointError: as ``resumable_directory``; a damaged source. NumericsError: weights that are not finite.
    """
    before = dict(bundle.model.named_parameters())
    model = (
        apply(plugin, config, bundle.model) if batches is None else calibrated(plugin, config, bundle.model, batches)
    )
    check_packed(model)
    entry = find("quantizer", plugin.name)
    facts = {
        "source": model_digest(source),
        "quantizer": f"{plugin.name} of {entry.distribution} {entry.version}",
        "settings": config.model_dump(mode="json"),
        **({} if batches is None else {"calibration data": _digest(batches)}),
    }
    with resumable_directory(out, facts) as progress:
        if batches is not None:
            attach_finished(model, [progress.directory / name for name in progress.files])
        each = measuring(model, before)
        num_bytes = write_by_layer(
            replace(bundle, model=model),
            progress,
            plugin,
            config,
            dtype,
            each,
            0 if batches is None else _CALIBRATED_FILE,
        )
        entries = [entry for file in progress.files.values() for entry in file["layers"].values()]
        found = {entry["name"]: Loss(**_read(entry)) for entry in entries}
        said = [text for entry in entries for text in entry["notes"]]
    layers = sorted(found.values(), key=lambda loss: loss.sqnr_db)
    return Streamed(model, num_bytes, layers, [*progress.notes, *dict.fromkeys(said)])


def measuring(model: Any, before: dict[str, Tensor]) -> Callable[[str], Mapping[str, Any]]:
    """What ``write_by_layer`` tells of every layer: the error of the weight that was packed in it, and what the quantizer said of
    it, as JSON; the original in ``before`` is forgotten."""
    packed = {weight.name.removesuffix(".weight"): weight for weight in packed_weights(model)}

    def each(layer: str) -> Mapping[str, Any]:
        weight = packed.pop(layer, None)  # again where a file ends between its tensors
        if weight is None:
            return {}
        loss = weight.loss(before.pop(weight.name))
        said = model.quantizer_notes if isinstance(model, CalibratedModel) else ()
        ratios = {key: _finite(getattr(loss, key)) for key in ("sqnr_db", "output_db")}
        return {**loss._asdict(), **ratios, "notes": [text for text in said if text.startswith(f"{layer}:")]}

    return each


def _read(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a loss from its JSON."""
    fields = {key: value for key, value in entry.items() if key != "notes"}
    ratios = {key: math.inf if entry[key] == _INFINITE else entry[key] for key in ("sqnr_db", "output_db")}
    return {**fields, **ratios, "shape": tuple(entry["shape"])}


def _finite(ratio: float | None) -> float | str | None:
    """A ratio as JSON has it."""
    return _INFINITE if ratio is not None and math.isinf(ratio) else ratio


def _digest(batches: Sequence[NDArray[np.int64]]) -> str:
    """SHA-256 of token ids."""
    found = hashlib.sha256()
    for ids in batches:
        found.update(f"{ids.shape}".encode() + ids.tobytes())
    return found.hexdigest()
