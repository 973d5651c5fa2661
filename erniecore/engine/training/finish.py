"""The end of a run: last evaluation, last checkpoint, ``model/`` or ``adapter/``, report; and the one place that says
how it ended."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.checkpoint.directories import (
    ADAPTER_DIRECTORY,
    QUANTIZED_DIRECTORY,
    atomic_directory,
    write_directory_manifest,
)
from erniecore.engine.arrays import share_memory
from erniecore.engine.models import quantized
from erniecore.engine.models.model_files import save_model_directory
from erniecore.engine.models.quantize import write_quantized
from erniecore.engine.preparation.rundir import log
from erniecore.engine.training import loop
from erniecore.engine.training.gather import WholeModel, made_whole, whole_model
from erniecore.engine.training.session import build_model
from erniecore.engine.training.state import abandon, save, settle
from erniecore.errors import NumericsError, Preempted
from erniecore.types import ModelBundle

if TYPE_CHECKING:
    from erniecore.engine.training.session import Run


#: errors that all ranks have together
_SHARED = (Preempted, NumericsError)


@contextmanager
def closing(run: Run) -> Iterator[None]:
    """Tells the callbacks that the run starts and, whatever happens in the block, how it ended.

    ``run_end`` has ``status`` ``finished``, ``preempted``, ``interrupted`` or ``failed``. An error in a callback at the
    end never hides the error that ended the run.
    """
    error: BaseException | None = None
    try:
        run.hook.ernie_run_start(run=run)
        yield
    except BaseException as caught:
        error = caught
        log.error("run ended: %s", caught, exc_info=not isinstance(caught, Preempted))
        raise
    finally:
        try:
            if run.ranks.size == 1 or error is None or isinstance(error, _SHARED):
                settle(run, wait=True)
            else:
                abandon(run)
            run.emit("run_end", status=_status(error), **_totals(run))
            run.hook.ernie_run_end(run=run, error=error)
        except Exception:
            log.exception("a callback failed at the end of the run")
            if error is None:
                raise


def _totals(run: Run) -> dict[str, Any]:
    """What was done and needed. ``tensor_memory``: most bytes that tensors held; ``planned_memory``: what the plan said of
    that, null where it could not; ``planned_seconds``: the same of one step of full rows, at a measured rate."""
    done = {"steps": run.step, "tokens": run.tokens, "seconds": run.seconds, "peak_memory": run.device.peak_memory()}
    held = getattr(run.device, "peak_tensors", run.device.peak_memory)()
    memory, seconds = run.ready.forecast
    return {**done, "tensor_memory": held, "planned_memory": memory, "planned_seconds": seconds}


def _status(error: BaseException | None) -> str:
    if error is None:
        return "finished"
    table = {Preempted: "preempted", KeyboardInterrupt: "interrupted"}
    return table.get(type(error), "failed")


def complete(run: Run) -> None:
    """What is due once the last step is done: checkpoint, evaluation, ``model/`` or ``adapter/``."""
    if run.settings.checkpoint.final:
        with run.pulse.resting():
            save(run)
    loop.evaluate_run(run)
    if run.stop_reason():
        loop.preempt(run)
    if run.settings.checkpoint.export:
        with run.pulse.resting():
            export_model(run)


def export_model(run: Run) -> None:
    """Write ``model/`` in the public layout, or under an adapter ``adapter/``; averaged weights if there are any. All
    ranks together: rank 0 writes, the others give it their parts."""
    started = time.perf_counter()
    with run.ema.applied() if run.ema is not None and run.settings.checkpoint.average else nullcontext():
        if run.settings.adapter is not None:
            with made_whole(run.ranks, run.policy, lambda: build_model(run.ready)) as model:
                path = _write_adapter(run, model) if run.is_main else None
        else:
            model = whole_model(run.ranks, run.policy)
            path = _write_model(run, model) if run.is_main else None
            if run.is_main:
                _write_codes(run, model)
    if not run.is_main:
        return
    if path is None:
        run.warn("export", message="this adapter cannot be written; the checkpoint holds its weights")
        return
    run.emit("export", step=run.step, path=str(path), seconds=time.perf_counter() - started)


def _write_codes(run: Run, whole: Any) -> None:
    """``quantized/``: the model as a quantizer that trains its weights packs it, with the scales that were trained.

    Args:
        whole: see ``whole_model``.
    """
    plugin = run.ready.loaded.plugins.get("quantizer")
    if plugin is None or quantized.TRAINS not in plugin.capabilities:
        return
    started, config = time.perf_counter(), run.settings.quantizer
    model = copy.deepcopy(run.policy) if whole is run.policy else build_model(run.ready)
    if whole is not run.policy:
        tensors = whole.state_dict()
        for name, tensor in model.state_dict().items():
            share_memory(tensors[name], tensor)
    bundle = _bundle(run, quantized.apply(plugin, config, model))
    write_quantized(bundle, run.out / QUANTIZED_DIRECTORY, plugin, config, run.settings.train.precision)
    where = str(run.out / QUANTIZED_DIRECTORY)
    run.emit("export", step=run.step, path=where, seconds=time.perf_counter() - started)


def _write_model(run: Run, model: Any) -> Path:
    """``model/``: unrounded weights; without what a quantizer keeps beside them."""
    own = quantized.own_state(run.policy)
    if own:
        model = WholeModel({name: tensor for name, tensor in model.state_dict().items() if name not in own})
    return save_model_directory(_bundle(run, model), run.out / "model")


def _bundle(run: Run, model: Any) -> ModelBundle:
    return ModelBundle(
        model=model,
        architecture=run.ready.architecture,
        adapter=run.ready.state_adapter,
        tokenizer=run.tokenizer,
        provenance=_provenance(run),
    )


def _write_adapter(run: Run, model: Any) -> Path | None:
    """None when the adapter's plugin has no ``ernie_save_adapter``."""
    if not run.hook.ernie_save_adapter.get_hookimpls():
        return None
    target, section, facts = run.out / ADAPTER_DIRECTORY, run.settings.adapter, _provenance(run)
    with atomic_directory(target) as directory:
        run.hook.ernie_save_adapter(config=section, model=model, target=directory, base=facts["base"])
        write_directory_manifest(directory, {**facts, "adapter": run.ready.names["adapter"]})
    return target


def _provenance(run: Run) -> dict[str, Any]:
    quantizer = run.ready.names.get("quantizer")
    return {
        "name": run.ready.name,
        "method": run.ready.names["method"],
        "base": str(getattr(run.settings.model, "path", "")),
        **({"quantizer": quantizer} if quantizer else {}),
        "steps": run.step,
        "tokens": run.tokens,
        "weights": "moving average" if run.ema is not None and run.settings.checkpoint.average else "last step",
        "config_hash": run.ready.config_hash,
    }
