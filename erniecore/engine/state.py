"""The whole state of a run into a checkpoint and back: weights, moments, averages, counters and the place in the data.
How files are written is the checkpoint package's matter; what a run needs to go on bit for bit is decided here.

There is no generator state: every random stream derives from (seed, purpose, step).
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle

import erniecore
from erniecore.checkpoint import Checkpoint, save_checkpoint
from erniecore.checkpoint.tensors import Tensor as StoredTensor
from erniecore.engine.gather import Gathering, Held, LocalArrays, Stored, whole_shapes
from erniecore.engine.optim import load_exactly
from erniecore.engine.prepare import circumstances
from erniecore.engine.resume import STATE_FORMAT
from erniecore.errors import CheckpointError
from erniecore.types import Piece

if TYPE_CHECKING:
    from erniecore.engine.session import Run
    from erniecore.types.model import Tensor


def saved_tensors(run: Run) -> dict[str, Tensor]:
    """Structured name -> weight that belongs into a checkpoint: all of them, or under an adapter the trained ones,
    because the frozen base is read again from ``model.path``."""
    tensors: dict[str, Tensor] = dict(run.policy.state_dict())
    if run.settings.adapter is None:
        return tensors
    return {name: tensor for name, tensor in tensors.items() if not tensor.stop_gradient}


def objective_tensors(run: Run) -> dict[str, Tensor]:
    """State that the objective keeps beside the weights; nothing for most."""
    return dict(run.objective.state_tensors())


def carried_arrays(run: Run) -> dict[str, Any]:
    """Arrays that the objective's later steps need; nothing for most."""
    return dict(run.objective.carried())


@dataclass(frozen=True)
class Writing:
    """A checkpoint that is being written: its step, its bytes, when it began, how long the training waited for the
    copy."""

    step: int
    num_bytes: int
    started: float
    stall: float
    result: Future[Path]


#: one at a time, in order; the interpreter waits for it when it ends
_WRITER = ThreadPoolExecutor(1, "checkpoint")


def save(run: Run, *, background: bool = False) -> Path | None:
    """Write the checkpoint of ``run.step``, unless it has just been written; returns its directory. All ranks together:
    rank 0 writes whole tensors, the same files whatever the layout.

    Args:
        background: copy the state and let the training go on; the checkpoint is announced by :func:`settle` once it is
            complete, and None is returned. A save that is still being written is waited for first.
    Raises:
        CheckpointError: disk full, no permission, …; older checkpoints are untouched.
    """
    started = time.perf_counter()
    settle(run, wait=True)
    done = run.ranks.exchange(str(run.saved[1]) if run.saved is not None and run.saved[0] == run.step else "")[0]
    if done:  # rank 0 knows: it is the one that writes
        return Path(done)
    run.last_save = time.monotonic()
    gathering = Gathering(run.ranks, held(run))
    if background:
        stored = gathering.copied()
        if run.is_main:
            begin_writing(run, stored, started)
        return None
    path = gathering.write(lambda stored: written(run, stored, started))
    run.saved = (run.step, path)
    return path


def written(run: Run, stored: Stored, started: float) -> Path:
    """Write on this rank and wait for it; raises ``CheckpointError``."""
    begin_writing(run, stored, started)
    path = settle(run, wait=True, strict=True)
    assert path is not None
    return path


def begin_writing(run: Run, stored: Stored, started: float) -> None:
    """Start to write ``stored`` and the rest of the state in the writer's thread."""
    if carried := carried_arrays(run):
        stored["carried"] = {name: StoredTensor.of(np.array(array)) for name, array in carried.items()}
    work = partial(
        save_checkpoint,
        run.out / "ckpt",
        run.step,
        stored,
        run_state(run),
        keep=run.settings.checkpoint.keep,
        parent_step=run.saved[0] if run.saved else None,
        config_hash=run.ready.config_hash,
        versions={"erniecore": erniecore.__version__, "paddle": paddle.__version__},
    )
    size = sum(tensor.num_bytes for group in stored.values() for tensor in group.values())
    run.writing = Writing(run.step, size, started, time.perf_counter() - started, _WRITER.submit(work))


def settle(run: Run, *, wait: bool, strict: bool = False) -> Path | None:
    """Announce the checkpoint that was being written, if it is complete, and return its directory.

    Args:
        wait: until it is. strict: a failure is an error; else a warning, until ``checkpoint.max_failures`` in a row.
    Raises:
        CheckpointError: it could not be written.
    """
    writing = run.writing
    if writing is None or not (wait or writing.result.done()):
        return None
    run.writing = None
    try:
        path = writing.result.result()
    except CheckpointError as error:
        run.failed_saves += 1
        if strict or run.failed_saves > run.settings.checkpoint.max_failures:
            raise
        durable = run.saved[0] if run.saved else 0
        run.warn("save", step=writing.step, message=str(error), failures=run.failed_saves, last_saved_step=durable)
        return None
    run.saved, run.failed_saves = (writing.step, path), 0
    seconds = time.perf_counter() - writing.started
    facts = {"bytes": writing.num_bytes, "seconds": seconds, "stall": seconds if strict else writing.stall}
    run.emit("checkpoint", step=writing.step, path=str(path), **facts)
    run.hook.ernie_checkpoint_saved(run=run, path=path)
    return path


def held(run: Run) -> dict[str, dict[str, Held]]:
    """Everything that a checkpoint holds, by group: what this rank has of each tensor."""
    ranks = run.ranks
    optim = {}
    for slot in run.optimizer.slots:
        piece = ranks.piece(slot.name, slot.parameter.shape)
        piece = piece if slot.part is None else replace(piece, flat=slot.part)
        optim.update({name: Held(t, piece) for name, t in slot.state_tensors().items()})
    model = {name: Held(t, ranks.piece(name, t.shape)) for name, t in saved_tensors(run).items()}
    groups = {"model": model, "optim": optim}
    if run.ema is not None:
        groups["ema"] = {name: Held(t, ranks.piece(name, t.shape)) for name, t in run.ema.state_tensors().items()}
    if own := objective_tensors(run):
        groups["objective"] = {name: Held(t, Piece(tuple(t.shape))) for name, t in own.items()}
    return groups


def run_state(run: Run) -> dict[str, Any]:
    """``state.json``: counters, place in the data, what the data was, and the settings."""
    return {
        "format": STATE_FORMAT,
        "step": run.step,
        "total_steps": run.total_steps,
        "tokens": run.tokens,
        "seconds": run.seconds,
        "seed": run.seed,
        "data_size": run.ready.parallel_plan.data_size,
        "num_updates": run.optimizer.num_updates,
        "guard": run.guard.state(),
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
    state, groups = checkpoint.state, held(run)
    own = {group: LocalArrays(checkpoint.require(group, whole_shapes(m)), m) for group, m in groups.items()}
    load_exactly({name: part.tensor for name, part in groups["model"].items()}, own["model"], "weights")
    run.optimizer.load_state_arrays(own["optim"], int(state["num_updates"]))
    if run.ema is not None:
        run.ema.load_state_arrays(own["ema"])
    if "objective" in own:
        run.objective.load_state_arrays(own["objective"])
    if "carried" in checkpoint.tensors:
        run.objective.load_carried(dict(checkpoint.tensors["carried"].items()))
    run.step, run.tokens, run.seconds = int(state["step"]), int(state["tokens"]), float(state["seconds"])
    run.guard.load_state(state["guard"])
    run.saved = (run.step, checkpoint.path)
