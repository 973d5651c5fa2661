"""Directories of quantized models: our own tensor names, with the tensors of a quantizer plugin's layers. config.json names the
plugin and its settings (``config_json.py``); the plugin builds the layers, and the files fill them bit for bit. Writing is
``quantized_files.py``.

Importing this module is light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_system.files import read_json
from erniecore_system.memory import release_freed

from erniecore import registry
from erniecore.abilities import check_needs
from erniecore.capabilities import QuantizerCapability
from erniecore.config.packed_base import QUANTIZATION, quantizer_of
from erniecore.config.problems import section_from
from erniecore.config.tree import Leaf, Place, Tree
from erniecore.engine.models.config_json import is_quantized
from erniecore.errors import CheckpointError, PluginError
from erniecore.host import assemble
from erniecore.types.protocols import FloatCodes, QuantizerState

if TYPE_CHECKING:
    from erniecore.engine.models.filling import Source
    from erniecore.plugin import Plugin
    from erniecore.sections import Section
    from erniecore.types.model import CacheCodec, Layer, ModelBundle, Tensor


def check_device(directory: Path, device: Any) -> None:
    """Raises ``ConfigError`` where the quantizer that wrote ``directory`` needs what ``device`` lacks."""
    if is_quantized(directory):
        name = quantizer_of(read_json(directory / "config.json"))
        check_needs("quantizer", name, registry.load("quantizer", name).needs, device)


def apply(plugin: Plugin, config: Section, model: Layer, phase: str = "export") -> Layer:
    """``model`` as the quantizer ``plugin`` packs it for use, in eval mode. Raises what the plugin raises."""
    from erniecore.engine.models.filling import fill

    host = assemble({"quantizer": plugin})
    if QuantizerCapability.EMPTY not in plugin.capabilities:
        fill(model)
    quantized: Layer = host.call(plugin, "ernie_quantize_model", config=config, model=model, phase=phase)
    quantized.eval()
    release_freed()
    return quantized


def calibrated(plugin: Plugin, config: Section, model: Layer, batches: Sequence[Any]) -> Layer:
    """``model`` as ``plugin`` packs it after calibration on ``batches``, in eval mode. Raises what the plugin raises."""
    host = assemble({"quantizer": plugin})
    quantized: Layer = host.call(plugin, "ernie_calibrate_model", config=config, model=model, batches=batches)
    quantized.eval()
    release_freed()
    return quantized


def compact(model: Layer) -> Layer:
    """An empty ``model`` that nobody will train, with the weights that files have in bfloat16 as they are there: half the bytes
    of a decoding step. That is the embedding and, where the quantizer ``bf16`` is installed, linear layers and experts. No value
    changes, and products stay float32."""
    from erniecore.types.decoder import CompactEmbedding

    if isinstance(model, CompactEmbedding):
        model.hold_embedding()
    if not any(entry.name == "bf16" for entry in registry.entries("quantizer")):
        return model
    plugin = registry.load("quantizer", "bf16")
    return apply(plugin, plugin.Config.model_validate({"exact": True}), model, "train")


def own_state(model: Layer) -> frozenset[str]:
    """Names of tensors that a quantizer adds to the weights that it trains: layers list theirs in ``quantizer_state``. A model
    directory in the Hugging Face format cannot hold them."""
    return frozenset(
        f"{name}.{tensor}"
        for name, layer in model.named_sublayers()
        if isinstance(layer, QuantizerState)
        for tensor in layer.quantizer_state
    )


def trained(names: Mapping[str, str], settings: Mapping[str, Any], model: Layer) -> Layer:
    """``model`` as a run with these plugins and settings trained it: with the quantizer's layers where it trains the weights
    themselves (capability ``trainable``), else unchanged."""
    name = names.get("quantizer")
    if not name:
        return model
    plugin, place = registry.load("quantizer", name), Place("the settings of the checkpoint")
    if QuantizerCapability.TRAINABLE not in plugin.capabilities:
        return model
    section: Tree = {key: Leaf(value, place) for key, value in dict(settings["quantizer"]).items() if key != "name"}
    return apply(plugin, section_from(plugin.Config, section), model, "train")


def opened(bundle: ModelBundle, directory: Path) -> ModelBundle:
    """``bundle``, whose model is new, with the layers and the tensors in ``directory``, which are read when they are filled.

    Raises:
        PluginNotFound: the quantizer is not installed. ConfigError: settings that it does not take.
        CheckpointError: damaged files, or tensors that do not fit.
    """
    section = bundle.architecture[QUANTIZATION]
    plugin, place = registry.load("quantizer", section["quantizer"]), Place(str(directory / "config.json"))
    settings: Tree = {name: Leaf(value, place) for name, value in dict(section.get("settings", {})).items()}
    model = apply(plugin, section_from(plugin.Config, settings), bundle.model)
    attach(model, directory)
    return replace(bundle, model=model)


def attach(model: Layer, directory: Path) -> None:
    """Say that the tensors of ``model``, which its quantizer has packed, are those in ``directory``; empty ones get them when
    they are filled.

    Raises:
        CheckpointError: damaged files, or tensors that do not fit.
    """
    from erniecore_checkpoint.comparing import compare_tensors, list_problems
    from erniecore_checkpoint.safetensors_io import merge_shards

    from erniecore.engine.models.filling import fill_from
    from erniecore.engine.models.weights import check_manifest, state_of

    paths = sorted(directory.glob("weights-*.safetensors"))
    check_manifest(directory, {path.name for path in paths})
    stored, targets = merge_shards(paths), state_of(model)
    shapes = {name: (tuple(tensor.shape), "") for name, (_, tensor) in stored.items()}
    problems = compare_tensors(
        shapes, {name: (tuple(t.shape), "") for name, t in targets.items()}, "the quantized model"
    )
    if problems:
        message = "the quantized weights do not fit the model: " + list_problems(problems)
        raise CheckpointError(message, where=str(directory), code="ERN-K004")
    coded = ((n, layer.code_dtypes) for n, layer in model.named_sublayers() if isinstance(layer, FloatCodes))
    codes = {f"{layer}.{name}": dtype for layer, own in coded for name, dtype in own.items()}
    fill_from(targets, {name: _source(stored, name, codes.get(name, "")) for name in targets})


def attach_finished(model: Layer, paths: Sequence[Path]) -> None:
    """Say that those tensors of an empty ``model`` that its quantizer has made are in the files ``paths``, as far as they are.
    Raises ``CheckpointError``: damaged files."""
    from erniecore_checkpoint.safetensors_io import merge_shards

    from erniecore.engine.models.filling import fill_from
    from erniecore.engine.models.weights import state_of

    parameters, stored = {name for name, _ in model.named_parameters()}, merge_shards(paths)
    targets = {name: t for name, t in state_of(model).items() if name in stored and name not in parameters}
    fill_from(targets, {name: _source(stored, name) for name in targets})


def _source(stored: Mapping[str, tuple[Path, Any]], name: str, code: str = "") -> Source:
    """Integers come as the file has them, and are in memory once they are used; the rest as in any other directory.
    ``code``: of what they are the bits, if of numbers that may not be finite; then they are looked at once."""
    from erniecore_checkpoint.tensors import LONG_NAMES, all_finite, contiguous_bytes

    from erniecore.engine import arrays
    from erniecore.engine.models.filling import Source
    from erniecore.engine.models.weights import not_finite, source_of
    from erniecore.types.model import TensorMap

    tensor = stored[name][1]
    found, shape = LONG_NAMES[tensor.dtype], tuple(tensor.shape)

    def share(target: Tensor) -> None:
        if code and not all_finite(contiguous_bytes(tensor, name), code):
            raise not_finite(LONG_NAMES[code], f"{stored[name][0]}: {name}")
        arrays.share_memory(arrays.over(tensor.load(), found), target)

    if "int" in found and all(shape) and arrays.on_host():
        return Source(share)
    return source_of(stored, TensorMap(name, shape, (name,), (shape,), itemgetter(0), None))


def is_packed(model: Any) -> bool:
    """Whether weights or the KV cache of ``model`` are quantized."""
    from erniecore.types.model import PackedLayer

    return codec_of(model) is not None or any(isinstance(layer, PackedLayer) for layer in model.sublayers())


def check_packed(model: Any) -> None:
    """Raises ``PluginError`` unless the quantizer replaced layers: only those can be written."""
    if not is_packed(model):
        raise PluginError(
            "this quantizer leaves all weights in floating point, so there is nothing to write as quantized"
        )


def codec_of(model: Any) -> CacheCodec | None:
    """The codec of the KV cache of ``model``; None: the cache is not quantized."""
    codec: CacheCodec | None = dict(model.named_children()).get("cache_codec")
    return codec
