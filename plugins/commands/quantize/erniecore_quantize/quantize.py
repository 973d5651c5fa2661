"""Quantizes a model directory: the quantized weights are written, the error of each layer is measured, and the files are
compared with what was written. Most quantizers pack it layer by layer (``streaming.py``); others, and checkpoints, have the whole
model in memory."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from erniecore.api import UsageError
from erniecore.api.command import plugin_settings
from erniecore.api.installation import load
from erniecore.api.model import ModelBundle
from erniecore.api.quantization import (
    apply,
    calibrated,
    check_packed,
    check_target,
    quantizer_of,
    with_provenance,
    write_quantized,
)
from erniecore.api.quantizer import CalibratedModel, QuantizerCapability
from erniecore.api.run import Opened, load_bundle, locate, open_device, open_located
from erniecore_quantize.losses import CacheLoss, Loss, cache_loss, losses
from erniecore_quantize.streaming import can_stream, stream

if TYPE_CHECKING:
    from erniecore_eval.suites import Score

    from erniecore.api import Plugin
    from erniecore_quantize.calibration import Rows


class Quantized(NamedTuple):
    """What was written.

    Attributes:
        path: the directory. num_bytes: of its weight files; parameters: of the original model.
        layers: every packed weight, the worst first. notes: for the user.
        before, after: loss and perplexity on the rows that were given, None without.
        cache: of a model with a quantized KV cache.
    """

    path: Path
    num_bytes: int
    parameters: int
    layers: list[Loss]
    notes: list[str]
    before: Score | None = None
    after: Score | None = None
    cache: CacheLoss | None = None


class Data(NamedTuple):
    """Data files for calibration and evaluation.

    Attributes:
        calibration: data files for the quantizer. evaluation: for the loss before and after; none: the same.
        method: its encoder is used. max_seq_len: tokens per row, and per calibration sequence.
    """

    calibration: Sequence[str] = ()
    evaluation: Sequence[str] = ()
    method: str = "sft"
    max_seq_len: int = 512


def quantize_directory(
    source: Path, out: Path, to: str, overrides: Sequence[str] = (), data: Data | None = None
) -> Quantized:
    """Quantize the model of a model directory, run or checkpoint with quantizer ``to`` and write it; opens ``cpu``.

    ``overrides``: settings of the quantizer as ``key=value``. Other tensors keep the dtype in which ``source`` stores them.
    What was written is read again and compared.

    Raises:
        DataError: ``data`` that cannot be read, or too little of it.
        PluginNotFound: no such quantizer. ConfigError: a setting that it does not have or take.
        UsageError: ``source`` is not a complete, unquantized model. NumericsError: weights that are not finite.
        CheckpointError: the target is not free, or what was written differs.
    """
    plugin = load("quantizer", to)
    config = plugin_settings(plugin.Config, overrides)
    data = data or Data()
    _check_plugin(plugin, data)
    check_target(out)
    located = locate(source)
    if located.adapter is not None:
        merge = shlex.join(
            ["ernie", "merge", str(located.adapter), "--base", str(located.path), "--out", f"{source}-merged"]
        )
        raise UsageError("this run trained an adapter beside the weights", where=str(source), next=merge)
    notes = open_device()
    streams = can_stream(plugin) and not located.is_checkpoint
    opened = open_located(located, empty=streams)
    bundle = opened.bundle
    if quantizer_of(bundle.architecture):
        raise UsageError("this model is quantized already", where=str(source), fix="quantize the original model")
    bundle = with_provenance(bundle, {**bundle.provenance, "base": str(source)}, bundle.generation)
    opened = opened._replace(bundle=bundle)
    if streams:
        done = _quantize_streamed(opened, located.path, out, plugin, config, data)
    else:
        done = _quantize_whole(opened, out, plugin, config, data)
    return done._replace(notes=[*notes, *opened.notes, *done.notes])


def _quantize_streamed(opened: Opened, source: Path, out: Path, plugin: Plugin, config: Any, data: Data) -> Quantized:
    """Layer by layer, also where losses are computed."""
    from erniecore.api.model_files import codec_of

    bundle, rows = opened.bundle, _rows(data, opened.bundle)
    parameters = sum(math.prod(tensor.shape) for tensor in bundle.model.parameters())
    first = rows["evaluation"].score(bundle) if rows else None
    calibrates = QuantizerCapability.CALIBRATE in plugin.capabilities
    batches = rows["calibration"].batches(data.max_seq_len) if calibrates else None
    done = stream(bundle, source, out, plugin, config, opened.dtype, batches)
    found = Quantized(out, done.num_bytes, parameters, done.layers, done.notes, first)
    if not rows and codec_of(done.model) is None:
        return found
    written = load_bundle(out, tokenizer=False, empty=True).bundle
    second = rows["evaluation"].score(replace(bundle, model=written.model)) if rows else None
    return found._replace(after=second, cache=cache_loss(written.model, done.model))


def _quantize_whole(opened: Opened, out: Path, plugin: Plugin, config: Any, data: Data) -> Quantized:
    """With the whole model in memory: for calibration, and to compute losses."""
    bundle, rows = opened.bundle, _rows(data, opened.bundle)
    before = dict(bundle.model.named_parameters())
    parameters = sum(math.prod(tensor.shape) for tensor in before.values())
    first = rows["evaluation"].score(bundle) if rows else None
    if QuantizerCapability.CALIBRATE in plugin.capabilities:
        batches = rows["calibration"].batches(data.max_seq_len)
        model = calibrated(plugin, config, bundle.model, batches)
    else:
        model = apply(plugin, config, bundle.model)
    check_packed(model)
    notes = list(model.quantizer_notes) if isinstance(model, CalibratedModel) else []
    layers = losses(model, before)
    before.clear()
    num_bytes = write_quantized(replace(bundle, model=model), out, plugin, config, opened.dtype)
    second = rows["evaluation"].score(replace(bundle, model=model)) if rows else None
    return Quantized(out, num_bytes, parameters, layers, notes, first, second, cache_loss(model))


def _check_plugin(plugin: Plugin, data: Data) -> None:
    if QuantizerCapability.EXPORT not in plugin.capabilities:
        raise UsageError("this quantizer packs weights for training only", where="--to", found=plugin.name)
    if QuantizerCapability.CALIBRATE in plugin.capabilities and not data.calibration:
        raise UsageError(
            f"{plugin.name} needs calibration data",
            where="--calib",
            fix="name a file of rows like those that the model will get: --calib rows.jsonl",
        )


def _rows(data: Data, bundle: ModelBundle) -> dict[str, Rows]:
    """``calibration`` and ``evaluation``; nothing when no file is named."""
    from erniecore_quantize.calibration import read_rows

    files = {"calibration": data.calibration, "evaluation": data.evaluation or data.calibration}
    return {use: read_rows(f, data.method, bundle, data.max_seq_len) for use, f in files.items() if f}
