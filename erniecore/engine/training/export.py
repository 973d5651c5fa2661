"""The model directory that a run leaves: ``model/`` in the Hugging Face format, or ``adapter/``, and ``quantized/`` beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_checkpoint.directories import ADAPTER_DIRECTORY, atomic_directory, write_directory_manifest
from erniecore_system.contents import digests

from erniecore.engine.fingerprint import KEY as FINGERPRINT
from erniecore.engine.models.adapters import TOKENIZER
from erniecore.engine.models.model_files import save_model_directory, write_tokenizer
from erniecore.types.model import ModelBundle
from erniecore.types.process_group import ProcessGroup

if TYPE_CHECKING:
    from erniecore.engine.context import RunContext
    from erniecore.engine.training.callbacks import Callbacks
    from erniecore.engine.training.state import TrainState
    from erniecore.host import Host
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
    """Write ``model/`` in the Hugging Face format, or under an adapter ``adapter/``; averaged weights if there are any. All
    ranks together: rank 0 writes, the others give it their shards.

    Args:
        rebuilt: makes the model of the run again, with the weights that it started from.
    """
    started, settings = time.perf_counter(), context.settings
    ema = state.ema if settings.checkpoint.average else None
    facts = provenance(context, state, averaged=ema is not None)
    if context.is_main:
        facts[FINGERPRINT] = digests(context.fingerprint.result())
    model = context.model
    bundle = ModelBundle(state.model, model.architecture, model.state_adapter, tokenizer, provenance=facts)
    path = None
    with ema.applied() if ema is not None else nullcontext():
        if state.adapted:
            with _full_model(ranks, state.model, rebuilt) as full:
                if context.is_main:
                    bundle, target = replace(bundle, model=full), context.out / ADAPTER_DIRECTORY
                    path = write_adapter(context.host, settings.adapter, bundle, target, facts)
        else:
            weights = _full_weights(ranks, state.model)
            if context.is_main and settings.quantizer is None:
                path = save_model_directory(replace(bundle, model=weights), context.out / "model")
            elif context.is_main:
                from erniecore.engine.training.export_quantized import whole_model, write_model, write_packed

                whole = whole_model(bundle, weights, rebuilt)
                path = write_model(bundle, whole, context.out / "model")
                write_packed(context, bundle, whole, partial(callbacks.emit, "export", step=state.step))
    if context.is_main and path is None:
        callbacks.warn("export", message="this adapter cannot be written; the checkpoint holds its weights")
    elif context.is_main:
        callbacks.emit("export", step=state.step, path=str(path), seconds=time.perf_counter() - started)


def _full_weights(ranks: ProcessGroup, model: Any) -> Any:
    """``model``, or its full weights where they are sharded; on rank 0."""
    if ranks.size == 1:
        return model
    from erniecore.engine.training.full_weights import full_weights

    return full_weights(ranks, model)


def _full_model(ranks: ProcessGroup, model: Any, rebuilt: Callable[[], Any]) -> AbstractContextManager[Any]:
    """``model`` with its full weights within the block, on rank 0."""
    if ranks.size == 1:
        return nullcontext(model)
    from erniecore.engine.training.full_weights import with_full_weights

    return with_full_weights(ranks, model, rebuilt)


def write_adapter(
    host: Host, config: Section | None, bundle: ModelBundle, target: Path, facts: Mapping[str, Any]
) -> Path | None:
    """``adapter/``, with the tokenizer and the chat template that it was trained with, whatever those of its base are; None
    when the adapter's plugin has no ``ernie_save_adapter``."""
    if not host.hook.ernie_save_adapter.get_hookimpls():
        return None
    with atomic_directory(target) as directory:
        host.hook.ernie_save_adapter(config=config, model=bundle.model, target=directory, base=facts["base"])
        if bundle.tokenizer is not None:
            write_tokenizer(bundle.tokenizer, directory)
        write_directory_manifest(directory, {**facts, TOKENIZER: bundle.tokenizer is not None})
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
