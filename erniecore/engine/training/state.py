"""The whole state of a run into a checkpoint and back: weights, moments, averages, counters and the place in the data.
How files are written is the checkpoint package's matter; what a run needs to go on bit for bit is decided here.

There is no generator state: every random stream derives from (seed, purpose, step).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle

import erniecore
from erniecore.checkpoint import Checkpoint
from erniecore.checkpoint.manifest import file_from_json, file_json
from erniecore.checkpoint.parts import PartWriter
from erniecore.checkpoint.shares import Shares
from erniecore.checkpoint.writer import Save
from erniecore.engine.preparation.prepare import circumstances
from erniecore.engine.preparation.resume import STATE_FORMAT
from erniecore.engine.training.gather import Held, LocalArrays, agree, feed
from erniecore.engine.training.optim import load_exactly
from erniecore.errors import CheckpointError
from erniecore.types import Piece, Ranks

if TYPE_CHECKING:
    from erniecore.engine.training.session import Run
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


#: bytes that may wait to be written while the run waits for them too
_WAITING = 256 << 20
#: seconds after which ranks that wait for each other's files talk again
_SIGN_OF_LIFE = 1.0
#: one at a time, in order; the interpreter waits for it when it ends
_WRITER = ThreadPoolExecutor(1, "checkpoint")


@dataclass
class Writing:
    """A checkpoint that is being written, this rank's files by ``part``: its step, its bytes, when it began, how long the
    training waited for the copy. Rank 0 has the ``save``, and its ``result`` once all ranks' files are on the disk."""

    step: int
    shares: Shares
    started: float
    save: Save | None
    part: PartWriter
    stall: float = 0.0
    complete: bool = False
    result: Future[Path] | None = None

    def advance(self, ranks: Ranks) -> Path | CheckpointError | None:
        """Go on as far as possible without waiting; the outcome, once there is one. All ranks together."""
        return self._await_result(ranks) if self.complete else self._await_parts(ranks)

    def _await_parts(self, ranks: Ranks) -> CheckpointError | None:
        error = self.part.error
        found = ranks.exchange([self.part.busy, None if error is None else error.fields()])
        failed = [(rank, fields) for rank, (_, fields) in enumerate(found) if fields is not None]
        if failed:
            self.part.abort()
        if any(busy for busy, _ in found):
            return None
        if failed:
            if self.save is not None:
                self.save.discard()
            return _error_of(*failed[0], ranks.size)
        self.complete = True
        files = [file_from_json(*file) for part in ranks.exchange(_told(self.part)) for file in part.items()]
        if self.save is not None:
            groups: dict[str, list[str]] = {}
            for file in self.shares.files:
                groups.setdefault(file.group, []).append(file.name)
            self.result = _WRITER.submit(self.save.finish, {file.name: file for file in files}, groups)
        return None

    def _await_result(self, ranks: Ranks) -> Path | CheckpointError | None:
        said: list[Any] = [None, None]
        if self.result is not None and self.result.done():
            try:
                said = [str(self.result.result()), None]
            except CheckpointError as error:
                said = [None, error.fields()]
        path, fields = ranks.exchange(said)[0]
        return Path(path) if path else None if fields is None else _error_of(0, fields, 1)

    def rest(self) -> None:
        """Wait a little for what this rank waits for."""
        if not self.complete:
            self.part.wait(_SIGN_OF_LIFE)
        elif self.result is not None:
            wait([self.result], _SIGN_OF_LIFE)


def _told(part: PartWriter) -> dict[str, Any]:
    return {file.name: file_json(file) for file in part.files}


def _error_of(rank: int, fields: Mapping[str, str], size: int) -> CheckpointError:
    own = dict(fields)
    message = own.pop("message")
    return CheckpointError(f"rank {rank}: {message}" if size > 1 else message, **own)


def save(run: Run, *, background: bool = False) -> Path | None:
    """Write the checkpoint of ``run.step``, unless it has just been written; returns its directory. All ranks together:
    each writes some of the whole tensors, the same ones whatever the layout.

    Args:
        background: copy the state and let the training go on; the checkpoint is announced by :func:`settle` once it is
            complete, and None is returned. A save that is still being written is waited for first.
    Raises:
        CheckpointError: disk full, no permission, …; older checkpoints are untouched.
    """
    started = time.perf_counter()
    settle(run, wait=True)
    if run.saved is not None and run.saved[0] == run.step:
        return run.saved[1]
    run.last_save = time.monotonic()
    groups = held(run)
    shares = agree(run.ranks, groups)
    try:
        begun, directory = begin(run, shares.num_bytes)
    except CheckpointError as error:
        not_saved(run, run.step, error, strict=not background)
        return None
    part = PartWriter(directory, shares.of(run.ranks.rank), _WRITER, None if background else _WAITING)
    try:
        feed(run.ranks, groups, shares, part, patient=not background)
    except BaseException:
        part.abort()
        raise
    run.writing = Writing(run.step, shares, started, begun, part, time.perf_counter() - started)
    return None if background else settle(run, wait=True, strict=True)


def begin(run: Run, num_bytes: int) -> tuple[Save | None, Path]:
    """Rank 0 makes the directory; every rank hears of it. Raises ``CheckpointError`` on all of them."""
    begun, said = None, list[Any]([None, None])
    if run.is_main:
        try:
            begun = Save(
                run.out / "ckpt",
                run.step,
                run_state(run),
                run.settings.checkpoint.keep,
                parent_step=run.saved[0] if run.saved else None,
                config_hash=run.ready.config_hash,
                versions={"erniecore": erniecore.__version__, "paddle": paddle.__version__},
            )
            said = [str(begun.begin(num_bytes)), None]
        except CheckpointError as error:
            said = [None, error.fields()]
    path, fields = run.ranks.exchange(said)[0]
    if fields is not None:
        raise _error_of(0, fields, 1)
    return begun, Path(path)


def settle(run: Run, *, wait: bool, strict: bool = False) -> Path | None:
    """Announce the checkpoint that was being written, if it is complete, and return its directory. All ranks together.

    Args:
        wait: until it is. strict: a failure is an error; else a warning, until ``checkpoint.max_failures`` in a row.
    Raises:
        CheckpointError: it could not be written.
    """
    writing = run.writing
    if writing is None:
        return None
    while (outcome := writing.advance(run.ranks)) is None:
        if not wait:
            return None
        writing.rest()
    run.writing = None
    if isinstance(outcome, CheckpointError):
        not_saved(run, writing.step, outcome, strict=strict)
        return None
    run.saved, run.failed_saves = (writing.step, outcome), 0
    seconds = time.perf_counter() - writing.started
    facts = {"bytes": writing.shares.num_bytes, "seconds": seconds, "stall": seconds if strict else writing.stall}
    run.emit("checkpoint", step=writing.step, path=str(outcome), **facts)
    if run.is_main:
        run.hook.ernie_checkpoint_saved(run=run, path=outcome)
    return outcome


def abandon(run: Run) -> None:
    """Give up what is being written: after an error that other ranks may not have, nobody can be waited for."""
    if run.writing is not None:
        run.writing.part.abort()
        run.writing = None


def not_saved(run: Run, step: int, error: CheckpointError, *, strict: bool) -> None:
    """Raise ``error``, or warn of it, until ``checkpoint.max_failures`` in a row."""
    run.failed_saves += 1
    if strict or run.failed_saves > run.settings.checkpoint.max_failures:
        raise error
    durable = run.saved[0] if run.saved else 0
    run.warn("save", step=step, message=str(error), failures=run.failed_saves, last_saved_step=durable)


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
        groups["objective"] = {name: Held(t, ranks.piece(name, t.shape)) for name, t in own.items()}
    if run.is_main and (carried := carried_arrays(run)):
        arrays = {name: np.array(array) for name, array in carried.items()}
        groups["carried"] = {name: Held(array, Piece(array.shape)) for name, array in arrays.items()}
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
    groups.pop("carried", None)  # of the present step
    specs = agree(run.ranks, groups).specs
    own = {
        group: LocalArrays(checkpoint.require(group, {n: (s, d) for n, (d, s) in specs[group].items()}), members)
        for group, members in groups.items()
    }
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
