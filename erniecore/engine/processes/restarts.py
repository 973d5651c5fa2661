"""A run whose ranks a launcher starts, and starts again when they die of something transient: killed, lost, did not find
each other. Errors of settings, data, numbers or plugins would come again, so they end the run at once. No paddle here.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from erniecore_system.lifeline import GRACE

from erniecore.engine.preparation.rundir import EVENTS_NAME, end_path, holders, locked, rank_lock
from erniecore.engine.processes.exits import result
from erniecore.engine.processes.job import Launch
from erniecore.engine.stop import AGAIN, acknowledge
from erniecore.errors import EnvironmentFault, Preempted
from erniecore.signals import SIGNALS, InterruptedTwice, told
from erniecore.types.launcher import Launcher, RunningRanks

#: codes of transient failures
TRANSIENT = ("ERN-E020", "ERN-E021", "ERN-E022", "ERN-E024", "ERN-E025")
#: longest pause before a restart, seconds
LONGEST_PAUSE = 60.0
#: seconds that ranks have after a second Ctrl-C
AT_ONCE = 2.0


def run_ranks(launcher: Launcher, launch: Launch, note: Callable[[str], None]) -> Mapping[str, float]:
    """Run to the end, with at most ``launcher.restarts`` restarts; the last metrics.

    With several nodes each does the same, and they restart together.

    Args:
        note: told of each restart; ``events.jsonl`` gets a warning of kind ``restart``, too.
    Raises:
        ErnieError: a failure that is not transient, or one too many; ``Preempted`` when all were asked to stop.
        KeyboardInterrupt: interrupted twice.
    """
    launcher.open(note)
    with contextlib.closing(launcher):
        return _run(launcher, launch, note)


def _run(launcher: Launcher, launch: Launch, note: Callable[[str], None]) -> Mapping[str, float]:
    failed, out, restarts = 0, launch.out, launcher.restarts
    progress = newest(out)
    for attempt in range(restarts + 1):
        try:
            return run_once(launcher, launch, note)
        except EnvironmentFault as error:
            if error.code not in TRANSIENT or attempt == restarts:
                raise
            failed, progress = (0 if newest(out) != progress else failed + 1), newest(out)
            pause = pause_after(failed)
            text = f"restart {attempt + 1} of {restarts} in {pause:g} s: {error.message} ({error.where})"
        note(text)
        if not launcher.node_rank:
            _record(out, attempt + 1, text)
        time.sleep(pause)
        launch = launch.resuming()
    raise AssertionError("the last attempt returns or raises")


def run_once(
    launcher: Launcher, launch: Launch, note: Callable[[str], None] = lambda text: None
) -> Mapping[str, float]:
    """One start, to its end; the last metrics. Raises what :func:`run_ranks` raises."""
    out, node, count = launch.out, launcher.node_rank, launch.ranks_per_node
    own = range(node * count, (node + 1) * count)
    with locked(out, f"lock-node-{node}" if node else "lock"), _Passing() as passing:
        await_ranks(out, own, note)
        for rank in own:
            end_path(out, rank).unlink(missing_ok=True)
        try:
            with contextlib.closing(launcher.start(launch.job())) as ranks:
                passing.begin(ranks)
                return result(ranks.wait(), out)
        except EnvironmentFault as error:
            if passing.twice:
                raise InterruptedTwice from error
            if passing.reason and error.code in TRANSIENT:  # killed by the signal before it could handle it
                raise Preempted(f"{told(passing.reason)} before the first step", fix=AGAIN) from error
            raise


def await_ranks(out: Path, ranks: Iterable[int], note: Callable[[str], None], patience: float = GRACE + 30.0) -> None:
    """Wait until no process of an earlier start is left: one whose launcher was killed saves first. What it leaves must not
    be read as this start's.

    Raises:
        EnvironmentFault: some are there after ``patience`` seconds; names them.
    """
    names, end, said = {rank_lock(rank) for rank in ranks}, time.monotonic() + patience, False
    while alive := [who for name, who in holders(out, rank_lock(0)[:-1] + "*").items() if name in names]:
        if time.monotonic() > end:
            raise EnvironmentFault(
                "ranks of an earlier start are still running",
                where=str(out),
                found=", ".join(alive),
                fix="end these processes with SIGKILL, or choose another run.out",
                code="ERN-E011",
            )
        if not said:
            note(f"waiting for {len(alive)} ranks of an earlier start to end: {', '.join(alive)}")
        said = True
        time.sleep(0.1)


class _Passing:
    """Signals that ask for a stop go to every rank; they agree on the step after which they do. Before there are ranks a
    signal ends the start.

    Attributes:
        reason: the first signal that has come. twice: Ctrl-C has come again; what is left then is killed.
    """

    def __init__(self) -> None:
        self.reason, self.twice = "", False
        self._ranks: RunningRanks | None = None
        self._before: dict[int, Callable[..., Any] | int | None] = {}

    def begin(self, ranks: RunningRanks) -> None:
        """From now on signals are passed to `ranks`."""
        self._ranks = ranks

    def __enter__(self) -> _Passing:
        if threading.current_thread() is threading.main_thread():
            now = {number: signal.getsignal(number) for number in SIGNALS}
            self._before = {number: handler for number, handler in now.items() if handler is not signal.SIG_IGN}
            for number in self._before:
                signal.signal(number, self._pass_on)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        self.twice |= name == self.reason == "SIGINT"
        self.reason = self.reason or name
        if self._ranks is None:
            raise InterruptedTwice if self.twice else Preempted(f"{told(name)} before the first step", fix=AGAIN)
        self._ranks.signal(number)
        if self.twice:
            killer = threading.Timer(AT_ONCE, self._ranks.signal, [signal.SIGKILL])
            killer.daemon = True
            killer.start()
        elif number == signal.SIGINT:
            acknowledge()


def pause_after(failed: int) -> float:
    """Seconds before the next start: none after one that made progress, then 1, 2, 4, … while ``failed`` restarts have not."""
    return min(2.0 ** (failed - 1), LONGEST_PAUSE) if failed else 0.0


def newest(out: Path) -> str:
    """The newest checkpoint of a run by name, as its writer left it; it tells whether a start made progress."""
    from erniecore_checkpoint.writer import LATEST_NAME  # imports numpy, which a launcher does not need

    try:
        return (out / "ckpt" / LATEST_NAME).read_text(encoding="utf-8")
    except OSError:
        return ""


def _record(out: Path, attempt: int, text: str) -> None:
    event = {"event": "warning", "time": time.time(), "kind": "restart", "attempt": attempt, "message": text}
    with contextlib.suppress(OSError), (out / EVENTS_NAME).open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps(event, ensure_ascii=False) + "\n")  # the last line may be half a line
