"""``ernie quantize``: a model directory with packed weights, what each layer lost, and proof that it reads back bit for bit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from erniecore import registry
from erniecore.checkpoint.directories import atomic_directory, check_target, write_directory_manifest
from erniecore.config.problems import section_from
from erniecore.config.sources import from_words
from erniecore.engine.models import quantized
from erniecore.engine.models.bundles import described as with_origin
from erniecore.engine.models.bundles import load_bundle, locate, open_device, open_located
from erniecore.errors import CheckpointError, UsageError
from erniecore.types import ModelBundle, PackedLayer

if TYPE_CHECKING:
    from erniecore.checkpoint.tensors import Tensor as Stored
    from erniecore.config.section import Section
    from erniecore.engine.models.calibration import Rows
    from erniecore.engine.scoring.suites import Score
    from erniecore.plugin import Plugin
    from erniecore.types.model import Tensor

#: positions of the cache whose bytes are counted
_TRIED = 8


class Loss(NamedTuple):
    """What packing did to one weight: signal-to-noise ratio in dB (infinite: nothing lost), largest absolute error;
    ``output_db``: the ratio of the layer's output on the calibration data, where the quantizer measured it."""

    name: str
    shape: tuple[int, ...]
    sqnr_db: float
    largest_error: float
    output_db: float | None = None


class CacheLoss(NamedTuple):
    """What a cache of codes costs.

    Attributes:
        form, static: as the codec says. layers: part (``keys``, ``values``) -> signal to noise in dB per layer, on the
            calibration data. bytes_per_token, plain_bytes_per_token: of the buffers of a cache, with codes and without.
    """

    form: str
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
        cache: of a model whose cache holds codes.
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
    """What a quantizer may look at.

    Attributes:
        calibration: data files for the quantizer. evaluation: for the loss before and after; none: the same.
        method: whose encoding of rows. max_seq_len: tokens per row, and per row that a quantizer sees.
    """

    calibration: Sequence[str] = ()
    evaluation: Sequence[str] = ()
    method: str = "sft"
    max_seq_len: int = 512


def quantize_directory(
    source: Path, out: Path, to: str, words: Sequence[str] = (), data: Data | None = None
) -> Quantized:
    """Write the model of a model directory, run or checkpoint with the weights that quantizer ``to`` packs; opens ``cpu``.

    ``words``: settings of the quantizer as ``key=value``. What is not packed keeps the dtype in which ``source`` stores it.
    The directory is loaded again and compared.

    Raises:
        DataError: ``data`` that cannot be read, or too little of it.
        PluginNotFound: no such quantizer. ConfigError: a setting that it does not have or take.
        UsageError: ``source`` is no whole, unquantised model. NumericsError: weights that are not finite.
        CheckpointError: the target is not free, or what was written differs.
    """
    plugin = registry.load("quantizer", to)
    config = section_from(plugin.Config, from_words(words))
    data = data or Data()
    _check_plugin(plugin, data)
    check_target(out)
    located = locate(source)
    if located.adapter is not None:
        raise UsageError("this run left an adapter", where=str(source), fix="ernie merge ADAPTER --base DIR --out DIR")
    notes = open_device()
    opened = open_located(located)
    bundle = opened.bundle
    if quantized.quantizer_of(bundle.architecture):
        raise UsageError("this model is quantised already", where=str(source), fix="quantise the original model")
    before = dict(bundle.model.named_parameters())
    parameters = sum(math.prod(tensor.shape) for tensor in before.values())
    rows = _rows(data, bundle)
    first = rows["evaluation"].score(bundle) if rows else None
    if quantized.CALIBRATE in plugin.capabilities:
        batches = rows["calibration"].batches(data.max_seq_len)
        model = quantized.calibrated(plugin, config, bundle.model, batches)
    else:
        model = quantized.apply(plugin, config, bundle.model)
    quantized.check_packed(model)
    notes += getattr(model, "quantizer_notes", [])
    layers = losses(model, before)
    before.clear()
    bundle = with_origin(bundle, {**bundle.provenance, "base": str(source)}, bundle.generation)
    num_bytes = write_quantized(replace(bundle, model=model), out, plugin, config, opened.dtype)
    second = rows["evaluation"].score(replace(bundle, model=model)) if rows else None
    return Quantized(out, num_bytes, parameters, layers, [*notes, *opened.notes], first, second, cache_loss(model))


def _check_plugin(plugin: Plugin, data: Data) -> None:
    if "export" not in plugin.capabilities:
        raise UsageError("this quantizer packs weights for training only", where="--to", found=plugin.name)
    if quantized.CALIBRATE in plugin.capabilities and not data.calibration:
        raise UsageError(
            f"{plugin.name} learns from data what weights are multiplied with",
            where="--calib",
            fix="name a file of rows as the model will see them: --calib rows.jsonl",
        )


def _rows(data: Data, bundle: ModelBundle) -> dict[str, Rows]:
    """``calibration`` and ``evaluation``; nothing when no file is named."""
    from erniecore.engine.models.calibration import read_rows

    files = {"calibration": data.calibration, "evaluation": data.evaluation or data.calibration}
    return {use: read_rows(f, data.method, bundle, data.max_seq_len) for use, f in files.items() if f}


def write_quantized(bundle: ModelBundle, out: Path, plugin: Plugin, config: Section, dtype: str) -> int:
    """Write ``bundle``, whose model ``plugin`` has packed with ``config``, to ``out``, whole or not at all, and load it again
    to compare; returns the bytes of the weights. ``dtype``: of parameters that are not packed.

    Raises:
        CheckpointError: the target is not free, or what was written differs.
    """
    architecture = quantized.described(bundle.architecture, plugin.name, config.model_dump(mode="json"))
    provenance = {**bundle.provenance, "quantizer": plugin.name}
    bundle = replace(bundle, architecture=architecture, provenance=provenance)
    with atomic_directory(out) as target:
        num_bytes = _write(bundle, target, dtype)
        _verify(bundle, target)
    return num_bytes


def losses(model: Any, before: Mapping[str, Tensor]) -> list[Loss]:
    """What every packed weight of ``model`` lost against ``before`` (parameter -> original), the worst first."""
    found = []
    for name, layer in model.named_sublayers():
        if isinstance(layer, PackedLayer):
            for parameter in layer.packed_shapes():
                full = f"{name}.{parameter}"
                loss = _loss(full, before[full], layer.unpacked(parameter))
                found.append(loss._replace(output_db=getattr(layer, "measured", {}).get(parameter)))
    return sorted(found, key=lambda loss: loss.sqnr_db)


def cache_loss(model: Any) -> CacheLoss | None:
    """What the codes in the cache of ``model`` cost, measured on buffers; None where it holds none."""
    import paddle

    from erniecore.engine.generation.cache import StaticCache, codec_of

    codec = codec_of(model)
    if codec is None:
        return None
    sizes = []
    for chosen in (codec, None):
        cache = StaticCache(int(model.architecture["num_hidden_layers"]), _TRIED, chosen)
        with paddle.no_grad():
            model.features(paddle.zeros([1, _TRIED], dtype="int64"), cache=cache)
        sizes.append(cache.num_bytes / _TRIED)
    return CacheLoss(codec.form, codec.static, getattr(codec, "measured", {}), *sizes)


def _loss(name: str, weight: Tensor, numbers: Tensor) -> Loss:
    w = weight.detach().astype("float32")
    error = numbers.astype("float32") - w
    signal, noise = (float((t.astype("float64") ** 2).sum()) for t in (w, error))
    ratio = 10 * math.log10(signal / noise) if signal and noise else math.inf
    return Loss(name, tuple(weight.shape), ratio, float(error.abs().max()))


def _write(bundle: ModelBundle, directory: Path, dtype: str) -> int:
    """The files; bytes of the weights. ``dtype``: of parameters that are not packed."""
    from erniecore.checkpoint.safetensors_write import DEFAULT_SHARD_BYTES, write_shards
    from erniecore.engine.models.model_files import provenance, write_assets
    from erniecore.engine.models.weights import state_of

    parameters = {name for name, _ in bundle.model.named_parameters()}
    kept = {entry.name: entry.dtype for entry in bundle.adapter.maps("pt") if entry.dtype}
    tensors = {
        name: _stored(tensor, (kept.get(name) or dtype) if name in parameters else "", name)
        for name, tensor in state_of(bundle.model).items()
    }
    written = write_shards(directory, "weights", tensors, DEFAULT_SHARD_BYTES)
    write_assets(bundle, directory, dtype)
    facts = {**provenance(bundle, written), "layout": "quantized"}
    write_directory_manifest(directory, facts, {file.name: file.sha256 for file in written})
    return sum(tensor.num_bytes for tensor in tensors.values())


def _stored(tensor: Tensor, dtype: str, name: str) -> Stored:
    """``tensor`` for the writer; ``dtype`` empty: as it is."""
    from erniecore.checkpoint.tensors import LONG_NAMES, Tensor
    from erniecore.engine import arrays
    from erniecore.engine.models.model_files import converted

    short = {long: short for short, long in LONG_NAMES.items()}
    wanted = dtype or arrays.dtype_name(tensor)
    return Tensor(short[wanted], tuple(tensor.shape), partial(converted, tensor, wanted, name))


def _verify(bundle: ModelBundle, directory: Path) -> None:
    """Raises ``CheckpointError`` unless ``directory`` holds the same codes, scales and other tensors, bit for bit."""
    from erniecore.engine import arrays
    from erniecore.engine.models.weights import state_of

    again = load_bundle(directory, tokenizer=False).bundle
    found = state_of(again.model)
    for name, tensor in state_of(bundle.model).items():
        if arrays.to_numpy(found[name]).tobytes() != arrays.to_numpy(tensor).tobytes():
            raise CheckpointError("the quantised model reads back differently", where=f"{directory}: {name}")
