"""The model directory that a run leaves: ``model/`` in the public layout, or ``adapter/``, and ``quantized/`` beside it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.capabilities import QuantizerCapability
from erniecore.checkpoint.directories import (
    ADAPTER_DIRECTORY,
    QUANTIZED_DIRECTORY,
    atomic_directory,
    write_directory_manifest,
)
from erniecore.engine.arrays import share_memory
from erniecore.engine.models import quantized
from erniecore.engine.models.model_files import save_model_directory
from erniecore.engine.models.quantized_files import write_quantized
from erniecore.engine.training.gather import FullWeights, full_weights, with_full_weights
from erniecore.types.model import ModelBundle
from erniecore.types.process_group import ProcessGroup

if TYPE_CHECKING:
    from erniecore.engine.context import RunContext
    from erniecore.engine.training.callbacks import Callbacks
    from erniecore.engine.training.state import TrainState
    from erniecore.host import Host
    from erniecore.plugin import Plugin
    from erniecore.sections import Section
    from erniecore.types.text import Tokenizer


def export_model(
    context: RunContext,
    state: TrainState,
    ranks: ProcessGroup,
    callbacks: Callbacks,
    tokenizer: Tokenizer,
    rebuilt: Callable[[], Any],
) -> None:
    """Write ``model/`` in the public layout, or under an adapter ``adapter/``; averaged weights if there are any. All
    ranks together: rank 0 writes, the others give it their shards.

    Args:
        rebuilt: makes the model of the run again, with the weights that it started from.
    """
    started, settings, plugins = time.perf_counter(), context.settings, context.plugins
    ema = state.ema if settings.checkpoint.average else None
    facts = provenance(context, state, averaged=ema is not None)
    model = context.model
    bundle = ModelBundle(state.model, model.architecture, model.state_adapter, tokenizer, provenance=facts)
    path = None
    with ema.applied() if ema is not None else nullcontext():
        if state.adapted:
            with with_full_weights(ranks, state.model, rebuilt) as full:
                if context.is_main:
                    path = write_adapter(context.host, settings.adapter, full, context.out / ADAPTER_DIRECTORY, facts)
        else:
            weights = full_weights(ranks, state.model)
            if context.is_main:
                path = write_model(bundle, weights, context.out / "model")
                if settings.quantizer is not None and packs(plugins["quantizer"]):
                    begun, target = time.perf_counter(), context.out / QUANTIZED_DIRECTORY
                    full = copy.deepcopy(state.model) if weights is state.model else filled(rebuilt(), weights)
                    own = replace(bundle, model=full)
                    write_packed(own, plugins["quantizer"], settings.quantizer, settings.train.precision, target)
                    took = time.perf_counter() - begun
                    callbacks.emit("export", step=state.step, path=str(target), seconds=took)
    if context.is_main and path is None:
        callbacks.warn("export", message="this adapter cannot be written; the checkpoint holds its weights")
    elif context.is_main:
        callbacks.emit("export", step=state.step, path=str(path), seconds=time.perf_counter() - started)


def write_model(bundle: ModelBundle, weights: Any, target: Path) -> Path:
    """``model/``: unrounded weights; without what a quantizer keeps with them."""
    own = quantized.own_state(bundle.model)
    if own:
        weights = FullWeights({name: tensor for name, tensor in weights.state_dict().items() if name not in own})
    return save_model_directory(replace(bundle, model=weights), target)


def packs(quantizer: Plugin) -> bool:
    """Whether a quantizer trains its weights, so that a run ends with a packed directory."""
    return QuantizerCapability.TRAINABLE in quantizer.capabilities


def filled(model: Any, weights: Any) -> Any:
    """``model`` with the tensors of ``full_weights``."""
    tensors = weights.state_dict()
    for name, tensor in model.state_dict().items():
        share_memory(tensors[name], tensor)
    return model


def write_packed(bundle: ModelBundle, quantizer: Plugin, config: Section, precision: str, target: Path) -> None:
    """``quantized/``: the model as a quantizer that trains its weights packs it, with the scales that were trained."""
    packed = replace(bundle, model=quantized.apply(quantizer, config, bundle.model))
    write_quantized(packed, target, quantizer, config, precision)


def write_adapter(
    host: Host, config: Section | None, model: Any, target: Path, facts: Mapping[str, Any]
) -> Path | None:
    """``adapter/``; None when the adapter's plugin has no ``ernie_save_adapter``."""
    if not host.hook.ernie_save_adapter.get_hookimpls():
        return None
    with atomic_directory(target) as directory:
        host.hook.ernie_save_adapter(config=config, model=model, target=directory, base=facts["base"])
        write_directory_manifest(directory, facts)
    return target


def provenance(context: RunContext, state: TrainState, *, averaged: bool) -> dict[str, Any]:
    """What the manifest of the directory says of the run."""
    names = context.names
    return {
        "name": context.name,
        "method": names["method"],
        "base": context.settings.model.path,
        **{kind: names[kind] for kind in ("quantizer", "adapter") if kind in names},
        "steps": state.step,
        "tokens": state.tokens,
        "weights": "moving average" if averaged else "last step",
        "config_hash": context.config_hash,
    }
