"""Quantizes a model directory: the quantized weights are written, the error of each layer is measured, and the files are
loaded again and compared bit for bit."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from erniecore.api import UsageError
from erniecore.api.command import plugin_settings
from erniecore.api.installation import load
from erniecore.api.model import ModelBundle
from erniecore.api.parallel import PackedLayer
from erniecore.api.quantization import (
    apply,
    calibrated,
    check_packed,
    check_target,
    quantizer_of,
    with_provenance,
    write_quantized,
)
from erniecore.api.quantizer import CalibratedModel, MeasuredLayer, QuantizerCapability
from erniecore.api.run import locate, open_device, open_located

if TYPE_CHECKING:
    from erniecore_eval.suites import Score
    from paddle import Tensor

    from erniecore.api import Plugin
    from erniecore_quantize.calibration import Rows

#: positions of the KV cache whose bytes are counted
_POSITIONS = 8


class Loss(NamedTuple):
    """Quantization error of one weight: signal-to-noise ratio in dB (infinite: exact), largest absolute error;
    ``output_db``: the ratio of the layer's output on the calibration data, where the quantizer measured it."""

    name: str
    shape: tuple[int, ...]
    sqnr_db: float
    largest_error: float
    output_db: float | None = None


class CacheLoss(NamedTuple):
    """Error and size of a quantized KV cache.

    Attributes:
        form, static: as the codec says. layers: part (``keys``, ``values``) -> signal to noise in dB per layer, on the
            calibration data. bytes_per_token, plain_bytes_per_token: of the cache's buffers, quantized and unquantized.
    """

    quant_dtype: str
    static: bool
    layers: Mapping[str, Sequence[float]]
    bytes_per_token: float
    plain_bytes_per_token: float


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
    The directory is loaded again and compared.

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
    opened = open_located(located)
    bundle = opened.bundle
    if quantizer_of(bundle.architecture):
        raise UsageError("this model is quantized already", where=str(source), fix="quantize the original model")
    before = dict(bundle.model.named_parameters())
    parameters = sum(math.prod(tensor.shape) for tensor in before.values())
    rows = _rows(data, bundle)
    first = rows["evaluation"].score(bundle) if rows else None
    if QuantizerCapability.CALIBRATE in plugin.capabilities:
        batches = rows["calibration"].batches(data.max_seq_len)
        model = calibrated(plugin, config, bundle.model, batches)
    else:
        model = apply(plugin, config, bundle.model)
    check_packed(model)
    notes += model.quantizer_notes if isinstance(model, CalibratedModel) else []
    layers = losses(model, before)
    before.clear()
    bundle = with_provenance(bundle, {**bundle.provenance, "base": str(source)}, bundle.generation)
    num_bytes = write_quantized(replace(bundle, model=model), out, plugin, config, opened.dtype)
    second = rows["evaluation"].score(replace(bundle, model=model)) if rows else None
    return Quantized(out, num_bytes, parameters, layers, [*notes, *opened.notes], first, second, cache_loss(model))


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


def losses(model: Any, before: Mapping[str, Tensor]) -> list[Loss]:
    """Quantization error of every packed weight of ``model`` against ``before`` (parameter -> original), the worst first."""
    found = []
    for name, layer in model.named_sublayers():
        if isinstance(layer, PackedLayer):
            for parameter in layer.packed_shapes():
                full = f"{name}.{parameter}"
                loss = _loss(full, before[full], layer.dequantized(parameter))
                found.append(loss._replace(output_db=_measured(layer).get(parameter)))
    return sorted(found, key=lambda loss: loss.sqnr_db)


def cache_loss(model: Any) -> CacheLoss | None:
    """Error and size of the quantized KV cache of ``model``, measured on its buffers; None where it is not quantized."""
    import paddle
    from erniecore_generation.cache import StaticCache

    from erniecore.api.model_files import codec_of

    codec = codec_of(model)
    if codec is None:
        return None
    sizes = []
    for chosen in (codec, None):
        cache = StaticCache(int(model.architecture["num_hidden_layers"]), _POSITIONS, chosen)
        with paddle.no_grad():
            model.features(paddle.zeros([1, _POSITIONS], dtype="int64"), cache=cache)
        sizes.append(cache.num_bytes / _POSITIONS)
    return CacheLoss(codec.quant_dtype, codec.static, _measured(codec), *sizes)


def _measured(thing: Any) -> Any:
    """What was measured on calibration data, of a packed layer or of a codec; nothing elsewhere."""
    return thing.measured if isinstance(thing, MeasuredLayer) else {}


def _loss(name: str, weight: Tensor, dequantized: Tensor) -> Loss:
    w = weight.detach().astype("float32")
    error = dequantized.astype("float32") - w
    signal, noise = (float((t.astype("float64") ** 2).sum()) for t in (w, error))
    ratio = 10 * math.log10(signal / noise) if signal and noise else math.inf
    return Loss(name, tuple(weight.shape), ratio, float(error.abs().max()))
