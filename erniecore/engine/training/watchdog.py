"""The hang watchdog of a process that trains. A thread looks once a second; when there was no heartbeat for
``run.hang_timeout`` seconds, the stacks of all ranks go to ``logs/rank-N.stacks``, and the rank that waits for no other ends
with ERN-E024, so that the others hear of it and the run can be started again. No paddle here.
"""

from __future__ import annotations

import faulthandler
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from erniecore_system import mapped
from erniecore_system.durable import replace_file

from erniecore.engine.launch import STACKS
from erniecore.errors import EnvironmentFault, ErnieError
from erniecore.types.process_group import ProcessGroup

#: seconds between two looks, and from the stacks to the end: the others write theirs meanwhile
LOOK, LINGER = 1.0, 3.0


class Watchdog:
    """Notes what a process does, and when its last heartbeat was.

    Args:
        out: the run directory. limit: seconds; 0: never end. end: told of the error, it ends the process.

    Attributes:
        fault: why no stacks are written; empty: they are.
    """

    def __init__(self, out: Path, limit: float, ranks: ProcessGroup, end: Callable[[Exception], None]) -> None:
        self.out, self.limit, self.ranks = out, limit, ranks
        self._end, self._doing, self._at = end, "", time.monotonic()
        self._paused, self._over = 0, threading.Event()
        self._asked_before = self._asked()
        self._file: IO[bytes] | None = None
        self.fault = ""

    def heartbeat(self, doing: str) -> None:
        """There was progress; ``doing`` comes next."""
        self._doing, self._at = doing, time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No limit within the block, such as while a checkpoint is written."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1
            self._at = time.monotonic()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this process within the block, and the files that it has mapped."""
        with mapped.ended_by(self._end), self._opened() as self._file:
            if threading.current_thread() is threading.main_thread():
                faulthandler.register(STACKS, file=self._file, all_threads=True)
            self._at = time.monotonic()
            thread = threading.Thread(target=self._look, name="watchdog", daemon=True)
            thread.start()
            try:
                yield
            finally:
                self._over.set()
                thread.join()
                if threading.current_thread() is threading.main_thread():
                    faulthandler.unregister(STACKS)

    def _opened(self) -> IO[bytes]:
        """``logs/rank-N.stacks``; nothing takes its place where it cannot be written, and ``fault`` says why."""
        try:
            return (self.out / "logs" / f"rank-{self.ranks.rank}.stacks").open("wb", buffering=0)
        except OSError as error:
            self.fault = f"no stacks are written if this process hangs: {error}"
            return Path(os.devnull).open("wb", buffering=0)

    def alarm(self) -> None:
        """Ask every rank for its stacks, this one included; returns when there was time to write them."""
        with suppress(OSError):
            (self.out / "control" / "stacks").write_text(str(time.time()))
        self.write_stacks()
        self._over.wait(LINGER)

    def write_stacks(self) -> None:
        """What every thread of this process does now, into the file."""
        if self._file is None:
            return
        waiting = self.ranks.waiting
        idle = time.monotonic() - self._at
        what = f"in {waiting}" if waiting else "waits for no other rank"
        with suppress(OSError):  # a full disk
            self._file.write(f"{time.strftime('%H:%M:%S')} {self._doing} since {idle:.0f} s; {what}\n".encode())
        faulthandler.dump_traceback(self._file, all_threads=True)

    def _asked(self) -> float:
        with suppress(OSError):
            return (self.out / "control" / "stacks").stat().st_mtime
        return 0.0

    def _look(self) -> None:
        alarmed = False
        while not self._over.wait(min(LOOK, self.limit / 4) if self.limit else LOOK):
            if self._asked() > self._asked_before:
                self._asked_before = self._asked()
                self.write_stacks()
            idle = time.monotonic() - self._at
            if not self.limit or self._paused or idle < self.limit:
                alarmed = False
                continue
            if not alarmed:
                alarmed = True
                self.alarm()
                self._asked_before = self._asked()
            late = not self.ranks.waiting
            if late and time.monotonic() - self._at >= self.limit and not self._over.is_set():
                self._end(self._error(idle))

    def _error(self, idle: float) -> EnvironmentFault:
        return EnvironmentFault(
            f"no progress for {idle:.0f} s",
            where=f"rank {self.ranks.rank}, {self._doing}",
            found=f"its stacks are in {self.out / 'logs' / f'rank-{self.ranks.rank}.stacks'}",
            fix="look there for what it does; run.hang_timeout sets the limit",
            code="ERN-E024",
        )


def end_process(record: Path) -> Callable[[Exception], None]:
    """What ends a process whose main thread does not answer or cannot go on: leaves the error in ``record`` and on stderr."""

    def end(error: Exception) -> None:
        assert isinstance(error, ErnieError)
        facts: dict[str, Any] = {"class": type(error).__name__, "fields": error.fields(), "problems": []}
        facts |= {"exit": int(error.exit_code), "time": time.time()}
        with suppress(OSError):
            replace_file(record, json.dumps(facts).encode())
        mapped.end(error)

    return end
