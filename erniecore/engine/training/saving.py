"""Saving checkpoints while a run trains. The path of a save, in order:

1. :meth:`CheckpointSaver.save` asks ``state.checkpoint_groups`` which tensors a checkpoint holds;
2. ``gather.assign`` decides which rank writes which of them, the same ones whatever the layout;
3. rank 0 makes the directory (``checkpoint.writer.Save.begin``);
4. ``gather.write_shards`` gathers each tensor on its rank and hands it to a ``checkpoint.parts.PartWriter``, whose thread
   writes files;
5. :class:`PendingSave` follows the threads of all ranks until every file is on disk;
6. rank 0 publishes the checkpoint (``Save.finish``: manifest, rename, retention);
7. :meth:`CheckpointSaver.settle` announces it.

The model directory at the end of a run is ``export.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paddle
from erniecore_checkpoint.manifest import file_from_json, file_json
from erniecore_checkpoint.parts import PartWriter
from erniecore_checkpoint.write_plan import WritePlan
from erniecore_checkpoint.writer import Save

import erniecore
from erniecore.engine.process_group import any_rank
from erniecore.engine.training.gather import assign, write_shards
from erniecore.engine.training.state import checkpoint_groups
from erniecore.errors import CheckpointError, NumericsError
from erniecore.types.process_group import ProcessGroup

if TYPE_CHECKING:
    from erniecore.config.core import CheckpointSection
    from erniecore.engine.training.callbacks import Callbacks
    from erniecore.engine.training.state import TrainState

#: bytes that may wait to be written while the run waits for them too
_WAITING = 256 << 20
#: where the settings name no interval: seconds between two saves, and the share of the time that they may cost
_INTERVAL, _SHARE = 600.0, 0.01
#: seconds after which ranks that wait for each other's files talk again
_KEEP_ALIVE = 1.0
#: one at a time, in order; the interpreter waits for it when it ends
_WRITER = ThreadPoolExecutor(1, "checkpoint")
_VERSIONS = {"erniecore": erniecore.__version__, "paddle": paddle.__version__}


@dataclass
class PendingSave:
    """A checkpoint that is being written, this rank's files by ``part``: its step, which rank writes what, when it began, how
    long the training waited for the copy. Rank 0 has the ``save``, and its ``result`` once all ranks' files are on disk."""

    step: int
    plan: WritePlan
    started: float
    save: Save | None
    part: PartWriter
    stall: float = 0.0
    complete: bool = False
    result: Future[Path] | None = None

    def advance(self, ranks: ProcessGroup) -> Path | CheckpointError | NumericsError | None:
        """Go on as far as possible without waiting; the outcome, once there is one. All ranks together."""
        return self._await_result(ranks) if self.complete else self._await_files(ranks)

    def _await_files(self, ranks: ProcessGroup) -> CheckpointError | NumericsError | None:
        error = self.part.error
        found = ranks.all_gather_object([self.part.busy, None if error is None else error.fields()])
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
        own = {file.name: file_json(file) for file in self.part.files}
        files = [file_from_json(*file) for part in ranks.all_gather_object(own) for file in part.items()]
        if self.save is not None:
            by_name = {file.name: file for file in files}
            self.result = _WRITER.submit(self.save.finish, by_name, _names_by_group(self.plan))
        return None

    def _await_result(self, ranks: ProcessGroup) -> Path | CheckpointError | NumericsError | None:
        said: list[Any] = [None, None]
        if self.result is not None and self.result.done():
            try:
                said = [str(self.result.result()), None]
            except CheckpointError as error:
                said = [None, error.fields()]
        path, fields = ranks.all_gather_object(said)[0]
        return Path(path) if path else None if fields is None else _error_of(0, fields, 1)

    def rest(self) -> None:
        """Wait a little for what this rank waits for."""
        if not self.complete:
            self.part.wait(_KEEP_ALIVE)
        elif self.result is not None:
            wait([self.result], _KEEP_ALIVE)


def _names_by_group(plan: WritePlan) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for file in plan.files:
        groups.setdefault(file.group, []).append(file.name)
    return groups


def _error_of(rank: int, fields: Mapping[str, str], size: int) -> CheckpointError | NumericsError:
    own = dict(fields)
    message, cls = own.pop("message"), NumericsError if fields["code"] == NumericsError.code else CheckpointError
    return cls(f"rank {rank}: {message}" if size > 1 else message, **own)


class CheckpointSaver:
    """Saves a run's checkpoints, one at a time. Every method is called by all ranks together.

    Args:
        out: the run directory. section: when and how many. facts: what ``state.json`` holds beside the counters.
        config_hash: of the run, for the manifest.

    Attributes:
        saved: (step, path) of the last checkpoint that is complete.
    """

    def __init__(
        self,
        out: Path,
        section: CheckpointSection,
        ranks: ProcessGroup,
        callbacks: Callbacks,
        facts: Callable[[], Mapping[str, Any]],
        config_hash: str,
    ) -> None:
        self._out, self._section, self._ranks, self._callbacks = out, section, ranks, callbacks
        self._facts, self._config_hash = facts, config_hash
        self.saved: tuple[int, Path] | None = None
        self._pending: PendingSave | None = None
        self._failed, self._last_save = 0, time.monotonic()
        # seconds: that the last save cost, of a step while nothing is written, that steps took longer than that
        self._cost, self._usual, self._slower = 0.0, 0.0, 0.0

    @property
    def _asked(self) -> Path:
        return self._out / "control" / "save"

    def wish(self) -> str:
        """Whether this rank wants a checkpoint: by its clock, or because the file ``control/save`` asks for it."""
        section = self._section
        interval = max(_INTERVAL, self._cost / _SHARE) if section.minutes is None else 60 * section.minutes
        late = interval and time.monotonic() - self._last_save >= interval
        return "save" if self._asked.exists() or late else ""

    def is_due(self, step: int, wish: str | None = None) -> bool:
        """By steps, or by the wish of any rank (the file is removed); the same on all ranks, whose clocks differ.

        Args:
            wish: what :func:`any_rank` says of theirs; ``None``: they are asked.
        """
        every, wanted = self._section.every, any_rank(self._ranks, self.wish()) if wish is None else wish
        if wanted:
            self._asked.unlink(missing_ok=True)
        return bool(wanted) or (every > 0 and step % every == 0)

    def step_took(self, seconds: float) -> None:
        """Told of every step: those beside a save that is being written are slower, which is part of what it costs."""
        if self._pending is not None:
            self._slower += seconds - self._usual
        else:
            self._usual = 0.9 * self._usual + 0.1 * seconds if self._usual else seconds

    def save(self, state: TrainState, *, background: bool = False) -> Path | None:
        """Write the checkpoint of ``state.step``, unless it has just been written; returns its directory.

        Args:
            background: copy the state and let the training go on; the checkpoint is announced by :meth:`settle` once it is
                complete, and None is returned. A save that is still being written is waited for first.
        Raises:
            CheckpointError: disk full, no permission, …; older checkpoints are untouched.
        """
        started = time.perf_counter()
        self.settle(wait=True)
        if self.saved is not None and self.saved[0] == state.step:
            return self.saved[1]
        self._last_save = time.monotonic()
        groups = checkpoint_groups(state, self._ranks)
        plan = assign(self._ranks, groups)
        try:
            begun, directory = self._begin(state, plan.num_bytes)
        except CheckpointError as error:
            self._not_saved(state.step, error, strict=not background)
            return None
        part = PartWriter(directory, plan.of(self._ranks.rank), _WRITER, None if background else _WAITING)
        try:
            write_shards(self._ranks, groups, plan, part, patient=not background)
        except BaseException:
            part.abort()
            raise
        stall, self._slower = time.perf_counter() - started, 0.0
        self._pending = PendingSave(state.step, plan, started, begun, part, stall)
        return None if background else self.settle(wait=True, strict=True)

    def copy(self, state: TrainState, directory: Path) -> dict[str, Any]:
        """Write this rank's files of a checkpoint of ``state.step`` into ``directory``, which exists and is this rank's alone.

        Returns, the same on all ranks: ``step``, ``state``, ``config_hash``, ``versions``, ``groups``, and ``files`` of all
        ranks (name -> size and hash), from which ``erniecore_checkpoint.writer.Save`` makes a checkpoint.
        Raises ``CheckpointError`` on all of them where one cannot write.
        """
        groups = checkpoint_groups(state, self._ranks)
        plan = assign(self._ranks, groups)
        part = PartWriter(directory, plan.of(self._ranks.rank), _WRITER, _WAITING)
        write_shards(self._ranks, groups, plan, part, patient=True)
        while part.busy:
            part.wait(_KEEP_ALIVE)
        error = part.error
        own = None if error else {file.name: file_json(file) for file in part.files}
        found = self._ranks.all_gather_object([own, None if error is None else error.fields()])
        for rank, (_, fields) in enumerate(found):
            if fields is not None:
                raise _error_of(rank, fields, self._ranks.size)
        return {
            "step": state.step,
            "state": {**self._facts(), **state.counters()},
            "config_hash": self._config_hash,
            "versions": _VERSIONS,
            "groups": _names_by_group(plan),
            "files": {name: facts for files, _ in found for name, facts in files.items()},
        }

    def _begin(self, state: TrainState, num_bytes: int) -> tuple[Save | None, Path]:
        """Rank 0 makes the directory; every rank hears of it. Raises ``CheckpointError`` on all of them."""
        begun, said = None, list[Any]([None, None])
        if self._ranks.rank == 0:
            try:
                begun = Save(
                    self._out / "ckpt",
                    state.step,
                    {**self._facts(), **state.counters()},
                    self._section.keep,
                    parent_step=self.saved[0] if self.saved else None,
                    config_hash=self._config_hash,
                    versions=_VERSIONS,
                )
                said = [str(begun.begin(num_bytes)), None]
            except CheckpointError as error:
                said = [None, error.fields()]
        path, fields = self._ranks.all_gather_object(said)[0]
        if fields is not None:
            raise _error_of(0, fields, 1)
        return begun, Path(path)

    def settle(self, *, wait: bool, strict: bool = False) -> Path | None:
        """Announce the checkpoint that was being written, if it is complete, and return its directory.

        Args:
            wait: until it is. strict: a failure is an error; else a warning, until ``checkpoint.max_failures`` in a row.
        Raises:
            CheckpointError: it could not be written.
        """
        pending = self._pending
        if pending is None:
            return None
        while (outcome := pending.advance(self._ranks)) is None:
            if not wait:
                return None
            pending.rest()
        self._pending = None
        if isinstance(outcome, NumericsError):
            raise outcome
        if isinstance(outcome, CheckpointError):
            self._not_saved(pending.step, outcome, strict=strict)
            return None
        self.saved, self._failed = (pending.step, outcome), 0
        seconds = time.perf_counter() - pending.started
        stall = seconds if strict else pending.stall
        self._cost = stall + max(self._slower, 0.0)
        facts = {"bytes": pending.plan.num_bytes, "seconds": seconds, "stall": stall}
        self._callbacks.emit("checkpoint", step=pending.step, path=str(outcome), **facts)
        self._callbacks.checkpoint_saved(outcome)
        return outcome

    def abandon(self) -> None:
        """Give up what is being written: after an error that other ranks may not have, nobody can be waited for."""
        if self._pending is not None:
            self._pending.part.abort()
            self._pending = None

    def _not_saved(self, step: int, error: CheckpointError, *, strict: bool) -> None:
        """Raise ``error``, or warn of it, until ``checkpoint.max_failures`` in a row."""
        self._failed += 1
        if strict or self._failed > self._section.max_failures:
            raise error
        durable = self.saved[0] if self.saved else 0
        self._callbacks.warn("save", step=step, message=str(error), failures=self._failed, last_saved_step=durable)
