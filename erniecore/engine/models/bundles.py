"""A model with everything around it, from a model directory, a run or a checkpoint; the plugin is found by ``model_type``.

Importing this module is light; paddle comes in when a model is built, after the device was opened (``open_device``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from erniecore_catalog import retired
from erniecore_checkpoint.tensors import LONG_NAMES
from erniecore_system.files import read_object

from erniecore import kernels, registry
from erniecore.config.packed_base import QUANTIZATION, quantizer_of
from erniecore.config.selection import plugin_for_directory
from erniecore.engine import launch
from erniecore.engine.models import quantized, score_head
from erniecore.engine.models.located import Located
from erniecore.engine.views import check_views
from erniecore.errors import CheckpointError, EnvironmentFault, UsageError
from erniecore.host import Host, assemble
from erniecore.plugin import ModelPlugin, Plugin
from erniecore.types.model import ModelBundle
from erniecore.types.records import Json
from erniecore.types.text import Tokenizer

if TYPE_CHECKING:
    from erniecore_checkpoint.reader import Checkpoint

    from erniecore.sections import Section


class Opened(NamedTuple):
    """What a directory held.

    Attributes:
        bundle: the model in eval mode, and what belongs to it.
        dtype: in which most of its weights were stored.
        notes: what the user should know.
    """

    bundle: ModelBundle
    dtype: str
    notes: list[str]


def open_device(name: str = "cpu", model: Path | None = None) -> list[str]:
    """Open a device by name with its default settings, outside of a run; returns warnings. Imports paddle.

    Raises:
        ConfigError: the quantizer that wrote the directory ``model`` needs what the device lacks.
    """
    device = launch.default_device(name)
    if model is not None:
        quantized.check_device(model, device)
    warnings = launch.apply_environment(device.environment())
    device.open()
    check_views(name)
    chosen = kernels.choose(device.name, {})
    warnings += chosen.warnings
    launch.use_kernels(chosen, warnings)
    return warnings


def open_located(
    located: Located,
    *,
    dtype: str = "float32",
    tokenizer: bool = True,
    plain: bool = False,
    mtp: bool = False,
    empty: bool = False,
    compact: bool = False,
) -> Opened:
    """The model at ``located``; see :func:`load_bundle` and :func:`load_checkpoint_bundle`. What a checkpoint holds is never
    ``empty`` or ``compact``."""
    if located.is_checkpoint:
        opened = load_checkpoint_bundle(located.path, dtype=dtype, tokenizer=tokenizer, plain=plain)
    else:
        opened = load_bundle(
            located.path,
            dtype=dtype,
            tokenizer=tokenizer,
            home=located.tokenizer_home,
            mtp=mtp,
            empty=empty,
            compact=compact,
        )
    if located.adapter is not None:
        from erniecore.engine.models.adapters import load_adapter

        adapted = load_adapter(opened.bundle.model, located.adapter)
        opened = opened._replace(bundle=score_head.completed(replace(opened.bundle, model=adapted)))
    return opened._replace(notes=[*located.notes, *opened.notes])


def load_bundle(
    directory: Path,
    *,
    dtype: str = "float32",
    tokenizer: bool = True,
    home: Path | None = None,
    mtp: bool = False,
    empty: bool = False,
    compact: bool = False,
) -> Opened:
    """The model in a model directory of the Hugging Face format.

    Args:
        directory: config.json and safetensors. dtype: of the parameters in memory.
        tokenizer: also read the tokenizer, in ``home`` or in the directory; that there is none is a note, not an error.
        mtp: build and load its multi-token-prediction layers as well.
        empty: leave the values in the files until the parameters are filled (``filling.py``).
        compact: weights that the files have in bfloat16 stay so in host memory, for a model that nobody trains or writes.

    Raises:
        ConfigError: ``mtp``, and the model has no such layers.
        PluginNotFound: no installed model plugin reads this ``model_type``, or the quantizer is not installed.
        CheckpointError: weights that do not fit, or a vocabulary smaller than the tokenizer's.
    """
    from erniecore.engine.models.filling import attach_zeros
    from erniecore.engine.models.weights import attach_weights, check_weights

    plugin = registry.load("model", plugin_for_directory(directory))
    # a model without the setting has no such layers; who needs them says so
    section = {"path": str(directory), **({"mtp": True} if mtp and "mtp" in plugin.Config.model_fields else {})}
    bundle, notes, build = read_bundle(plugin, section, (home or directory) if tokenizer else None)
    if quantizer_of(bundle.architecture):
        bundle = _empty(bundle, build, dtype)
        attach_zeros(bundle.model)  # what the quantizer packs, before its files replace it
        bundle = described_by(directory, quantized.opened(bundle, directory))
        bundle = replace(bundle, model=_filled(bundle.model, empty=empty, compact=compact))
        return Opened(bundle, str(bundle.architecture.get("torch_dtype", dtype)), notes)
    adapter = score_head.state_with_score(bundle.adapter, bundle.architecture)
    checked = check_weights(directory, bundle.architecture, adapter)
    bundle = _empty(bundle, build, dtype)
    report = attach_weights(bundle.model, directory, checked)
    bundle = replace(bundle, model=_filled(bundle.model, empty=empty, compact=compact))
    stored = stored_dtype(directory) or dtype
    notes += left_alone(report.ignored)
    if QUANTIZATION in bundle.architecture:
        notes.append("quantized for servers; read as the numbers that its codes stand for")
        bundle = replace(bundle, architecture={k: v for k, v in bundle.architecture.items() if k != QUANTIZATION})
        stored = str(bundle.architecture.get("torch_dtype", bundle.architecture.get("dtype", stored)))
    bundle = described_by(directory, bundle)
    return Opened(bundle, stored, [str(report), *notes])


def _filled(model: Any, *, empty: bool, compact: bool) -> Any:
    """In eval mode, with its values unless it stays ``empty``."""
    from erniecore.engine.models.filling import fill

    if compact:
        model = quantized.compact(model)
    if not empty:
        fill(model)
    model.eval()
    return model


def stored_dtype(directory: Path) -> str:
    """In which most weights of a directory are stored."""
    from erniecore.engine.models.weights import open_weights

    sizes: Counter[str] = Counter()
    for _, tensor in open_weights(directory).values():
        sizes[tensor.dtype] += tensor.num_bytes
    return LONG_NAMES[sizes.most_common(1)[0][0]] if sizes else ""


def left_alone(names: Sequence[str]) -> list[str]:
    """A note on public tensors that are no part of the model."""
    more = " …" if len(names) > 3 else ""
    return [f"not part of this model: {', '.join(names[:3])}{more}"] if names else []


def load_checkpoint_bundle(
    path: Path, *, dtype: str = "float32", tokenizer: bool = True, plain: bool = False
) -> Opened:
    """The model in a checkpoint, built with the settings that the checkpoint holds; averaged weights where there are any,
    unless these say otherwise. It computes as it was trained, with its quantizer; ``plain``: without.

    Raises:
        CheckpointError: damaged, without settings, or with an adapter's weights only.
    """
    from erniecore_checkpoint.reader import load_checkpoint

    from erniecore.engine.models.filling import attach_zeros

    checkpoint = load_checkpoint(path)
    settings, names = _settings_of(checkpoint)
    plugin = registry.load("model", names["model"])
    section = {k: v for k, v in settings["model"].items() if k in plugin.Config.model_fields}
    home = section.get("tokenizer") or section.get("path")
    bundle, notes = build_bundle(plugin, section, Path(home) if home and tokenizer else None, dtype)
    attach_zeros(bundle.model)  # what the quantizer rounds, before the checkpoint's values replace it
    bundle = score_head.as_saved(bundle, checkpoint.tensors["model"])
    averaged = "ema" in checkpoint.tensors and settings.get("checkpoint", {}).get("average", True)
    bundle = replace(bundle, model=quantized.trained(names, settings, bundle.model))
    _load_structured(bundle, checkpoint, averaged=averaged)
    if plain and quantized.own_state(bundle.model):
        bundle = _without_quantizer(bundle, build_bundle(plugin, section, None, dtype)[0])
        notes.append(f"weights as they were updated, not rounded by {names['quantizer']}")
    bundle.model.eval()
    provenance = {
        "checkpoint": path.name,
        "method": names.get("method", ""),
        "base": str(section.get("path", "")),
        "steps": checkpoint.step,
        "weights": "moving average" if averaged else "last step",
        "config_hash": checkpoint.manifest.config_hash,
    }
    generation = _generation_of(Path(section["path"])) if section.get("path") else {}
    return Opened(described(bundle, provenance, generation), dtype, notes)


def build_bundle(
    plugin: Plugin, section: Mapping[str, Any], tokenizer_home: Path | None, dtype: str
) -> tuple[ModelBundle, list[str]]:
    """An empty model (shapes, no memory yet) and notes. ``section``: values for the ``Config`` of the model plugin;
    ``tokenizer_home``: where the tokenizer's files are; ``None``: no tokenizer."""
    bundle, notes, build = read_bundle(plugin, section, tokenizer_home)
    return _empty(bundle, build, dtype), notes


def _empty(bundle: ModelBundle, build: Callable[..., Any], dtype: str) -> ModelBundle:
    import paddle

    with paddle.LazyGuard():
        model, adapter = score_head.as_described(build(dtype=dtype), bundle.adapter, bundle.architecture)
    return replace(bundle, model=model, adapter=adapter)


def read_bundle(
    plugin: Plugin, section: Mapping[str, Any], tokenizer_home: Path | None
) -> tuple[ModelBundle, list[str], Callable[..., Any]]:
    """As :func:`build_bundle`, with no model yet: what builds it, in a ``dtype``, comes last."""
    host = assemble({"model": plugin})
    config = plugin.Config(**section)
    architecture: Json = host.call(plugin, "ernie_read_architecture", config=config)
    tokenizer, notes = _tokenizer(host, plugin, config, tokenizer_home)
    if tokenizer is not None:
        notes += check_vocabulary(architecture, tokenizer, str(tokenizer_home))
    adapter = host.call(plugin, "ernie_state_adapter", architecture=architecture)
    build = partial(host.call, plugin, "ernie_build_model", config=config, architecture=architecture)
    return ModelBundle(model=None, architecture=architecture, adapter=adapter, tokenizer=tokenizer), notes, build


def read_tokenizer(plugin: Plugin, architecture: Json, directory: Path, template: str = "") -> Tokenizer:
    """The tokenizer in ``directory`` as this model uses it. Raises ``EnvironmentFault`` when there is none."""
    host = assemble({"model": plugin})
    config = plugin.Config(**{"architecture": dict(architecture), "template": template})
    tokenizer: Tokenizer = host.call(plugin, "ernie_build_tokenizer", config=config, directory=directory)
    return tokenizer


def open_tokenizer(directory: Path, home: Path | None = None) -> tuple[Tokenizer, Json]:
    """The tokenizer of a model directory, or in ``home``, as its model uses it, and the content of config.json. No paddle.

    Raises:
        PluginNotFound, CheckpointError: see ``plugin_for_directory``. EnvironmentFault: there is no tokenizer.
    """
    plugin = registry.load("model", plugin_for_directory(directory))
    architecture = _json(directory / "config.json")
    return read_tokenizer(plugin, architecture, home or directory), architecture


def _tokenizer(host: Host, plugin: Plugin, config: Section, home: Path | None) -> tuple[Tokenizer | None, list[str]]:
    if home is None:
        return None, []
    try:
        return host.call(plugin, "ernie_build_tokenizer", config=config, directory=home), []
    except EnvironmentFault as error:
        return None, [f"without a tokenizer: {error}"]


def check_vocabulary(architecture: Json, tokenizer: Tokenizer, where: str) -> list[str]:
    """A note when the model has more ids than the tokenizer.

    Raises:
        CheckpointError: it has fewer.
    """
    rows = int(architecture["vocab_size"])
    if tokenizer.vocab_size > rows:
        raise CheckpointError(
            "the tokenizer has more ids than the model",
            where=where,
            found=f"{tokenizer.vocab_size} ids",
            expected=f"at most vocab_size = {rows}",
            fix="use the tokenizer that belongs to this model",
            code="ERN-K004",
        )
    if tokenizer.vocab_size < rows:
        return [f"the model has {rows} ids, the tokenizer {tokenizer.vocab_size}: the rest is never used"]
    return []


def _settings_of(checkpoint: Checkpoint) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    settings, names = checkpoint.state.get("settings"), checkpoint.state.get("plugins")
    if not isinstance(settings, dict) or not isinstance(names, dict) or "model" not in names:
        raise CheckpointError("this checkpoint does not say which model it is of", where=str(checkpoint.path))
    if settings.get("adapter") is not None:
        raise CheckpointError(
            "this checkpoint holds an adapter's weights, not a whole model",
            where=str(checkpoint.path),
            fix="name the run, which leaves adapter/ at its end, or continue it to its end",
        )
    return retired.renamed_settings(settings), names


def _load_structured(bundle: ModelBundle, checkpoint: Checkpoint, *, averaged: bool) -> None:
    from erniecore.engine import arrays
    from erniecore.engine.models.weights import convert, state_of

    targets = state_of(bundle.model)
    tensors = checkpoint.require("model", {name: (tuple(t.shape), "") for name, t in targets.items()})
    average: Mapping[str, Any] = checkpoint.tensors["ema"] if averaged else {}
    for name, target in targets.items():
        source = average if name in average else tensors
        found = LONG_NAMES[checkpoint.tensors["ema" if name in average else "model"].entries[name].dtype]
        array = convert(source[name], found, arrays.dtype_name(target), f"{checkpoint.path}: {name}")
        arrays.set_value(target, array)


def _without_quantizer(bundle: ModelBundle, other: ModelBundle) -> ModelBundle:
    """``bundle`` with the model of ``other``, filled with its weights."""
    from erniecore.engine.models.weights import state_of

    model, _ = score_head.as_described(other.model, other.adapter, bundle.architecture)
    weights = state_of(bundle.model)
    for name, target in state_of(model).items():
        target.set_value(weights[name])
    return replace(bundle, model=model)


def described(bundle: ModelBundle, provenance: Json, generation: Json) -> ModelBundle:
    """``bundle`` with what it says of its origin and of how to generate with it."""
    return replace(bundle, provenance=provenance, generation=generation)


def described_by(directory: Path, bundle: ModelBundle) -> ModelBundle:
    """``bundle`` with what ``directory`` says of it; see :func:`described`."""
    return described(bundle, _provenance_of(directory), _generation_of(directory))


def _generation_of(directory: Path) -> Json:
    return _json(directory / "generation_config.json")


def _provenance_of(directory: Path) -> Json:
    """What the directory says of its own origin, without what is written anew each time."""
    from erniecore_checkpoint.directories import MODEL_MANIFEST

    facts = _json(directory / MODEL_MANIFEST).get("provenance")
    known = {k: v for k, v in facts.items() if k not in ("erniecore", "parameters")} if isinstance(facts, dict) else {}
    return known or {"source": str(directory)}


def _json(path: Path) -> dict[str, Any]:
    return read_object(path, CheckpointError, code="ERN-K021") if path.is_file() else {}


def model_plugin(name: str) -> ModelPlugin:
    """The installed model plugin ``name``. Raises ``PluginNotFound`` and ``UsageError``."""
    plugin = registry.load("model", name)
    if not isinstance(plugin, ModelPlugin):
        raise UsageError("this plugin does not say which models it reads", where=name, expected="a ModelPlugin")
    return plugin
