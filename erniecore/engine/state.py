"""The whole state of a run into a checkpoint and back: weights, moments, averages, counters and the place in the data.
How files are written is the checkpoint package's matter; what a run needs to go on bit for bit is decided here.

There is no generator state: every random stream derives from (seed, purpose, step).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paddle

import erniecore
from erniecore.checkpoint import Checkpoint, save_checkpoint
from erniecore.checkpoint.tensors import LONG_NAMES
from erniecore.checkpoint.tensors import Tensor as StoredTensor
from erniecore.engine.arrays import dtype_name, to_numpy
from erniecore.engine.optim import load_exactly
from erniecore.engine.prepare import circumstances
from erniecore.engine.resume import STATE_FORMAT

if TYPE_CHECKING:
    from erniecore.engine.session import Run
    from erniecore.types.model import Tensor

#: Paddle's dtype names -> safetensors'
SHORT_NAMES = {long: short for short, long in LONG_NAMES.items()}


def saved_tensors(run: Run) -> dict[str, Tensor]:
    """Structured name -> weight that belongs into a checkpoint: all of them, or under an adapter the trained ones,
    because the frozen base is read again from ``model.path``."""
    tensors: dict[str, Tensor] = dict(run.policy.state_dict())
    if run.settings.adapter is None:
        return tensors
    return {name: tensor for name, tensor in tensors.items() if not tensor.stop_gradient}


def objective_tensors(run: Run) -> dict[str, Tensor]:
    """State that the objective keeps beside the weights; nothing for most."""
    state_tensors = getattr(run.objective, "state_tensors", None)
    return dict(state_tensors()) if state_tensors is not None else {}


def carried_arrays(run: Run) -> dict[str, Any]:
    """Arrays that the objective's later steps need; nothing for most."""
    carried = getattr(run.objective, "carried", None)
    return dict(carried()) if carried is not None else {}


def save(run: Run) -> Path:
    """Write the checkpoint of ``run.step``, unless it has just been written; returns its directory.

    Raises:
        CheckpointError: disk full, no permission, …; older checkpoints are untouched.
    """
    if run.saved is not None and run.saved[0] == run.step:
        return run.saved[1]
    started = time.perf_counter()
    groups = {"model": saved_tensors(run), "optim": run.optimizer.state_tensors()}
    if run.ema is not None:
        groups["ema"] = run.ema.state_tensors()
    if own := objective_tensors(run):
        groups["objective"] = own
    stored = {group: {name: on_host(t) for name, t in tensors.items()} for group, tensors in groups.items()}
    if carried := carried_arrays(run):
        stored["carried"] = {name: StoredTensor.of(array) for name, array in carried.items()}
    path = save_checkpoint(
        run.out / "ckpt",
        run.step,
        stored,
        run_state(run),
        keep=run.settings.checkpoint.keep,
        parent_step=run.saved[0] if run.saved else None,
        config_hash=run.ready.config_hash,
        versions={"erniecore": erniecore.__version__, "paddle": paddle.__version__},
    )
    run.saved = (run.step, path)
    size = sum(tensor.num_bytes for group in stored.values() for tensor in group.values())
    run.emit("checkpoint", step=run.step, path=str(path), bytes=size, seconds=time.perf_counter() - started)
    run.hook.ernie_checkpoint_saved(run=run, path=path)
    return path


def on_host(tensor: Tensor) -> StoredTensor:
    """What the writer stores; copied to the host when its turn comes, so that only one copy exists at a time."""
    return StoredTensor(SHORT_NAMES[dtype_name(tensor)], tuple(tensor.shape), lambda: to_numpy(tensor))


def run_state(run: Run) -> dict[str, Any]:
    """``state.json``: counters, place in the data, what the data was, and the settings."""
    return {
        "format": STATE_FORMAT,
        "step": run.step,
        "total_steps": run.total_steps,
        "tokens": run.tokens,
        "seconds": run.seconds,
        "seed": run.seed,
        "num_updates": run.optimizer.num_updates,
        "skips": run.guard.skips,
        "data": run.feed.state(),
        "circumstances": circumstances(run.ready),
        "plugins": dict(run.ready.names),
        "settings": run.ready.settings_dump,
    }


def restore(run: Run, checkpoint: Checkpoint) -> None:
    """Continue where ``checkpoint`` was saved.

    Raises:
        CheckpointError: its tensors are not those of this run.
    """
    state = checkpoint.state
    targets = saved_tensors(run)
    load_exactly(targets, checkpoint.require("model", _shapes(targets)), "weights")
    moments = checkpoint.require("optim", _shapes(run.optimizer.state_tensors()))
    run.optimizer.load_state_arrays(moments, int(state["num_updates"]))
    if run.ema is not None:
        run.ema.load_state_arrays(checkpoint.require("ema", _shapes(run.ema.state_tensors())))
    if own := objective_tensors(run):
        objective: Any = run.objective
        objective.load_state_arrays(checkpoint.require("objective", _shapes(own)))
    if "carried" in checkpoint.tensors:
        carrier: Any = run.objective
        carrier.load_carried(dict(checkpoint.tensors["carried"].items()))
    run.step, run.tokens, run.seconds = int(state["step"]), int(state["tokens"]), float(state["seconds"])
    run.guard.skips = int(state["skips"])
    run.saved = (run.step, checkpoint.path)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (tuple(tensor.shape), SHORT_NAMES[dtype_name(tensor)]) for name, tensor in tensors.items()}
