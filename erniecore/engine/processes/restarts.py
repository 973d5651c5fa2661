"""A run whose ranks a launcher starts, and starts again when they die of something transient: killed, lost, did not find
each other. Errors of settings, data, numbers or plugins would come again, so they end the run at once. No paddle here.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from erniecore.checkpoint.writer import LATEST_NAME
from erniecore.engine.preparation.rundir import EVENTS_NAME, end_path, locked
from erniecore.engine.processes.exits import result
from erniecore.engine.processes.job import Launch
from erniecore.errors import EnvironmentFault
from erniecore.signals import SIGNALS
from erniecore.types.launcher import Launcher, RunningRanks

#: codes of transient failures
TRANSIENT = ("ERN-E020", "ERN-E021", "ERN-E022", "ERN-E024", "ERN-E025")
#: longest pause before a restart, seconds
LONGEST_PAUSE = 60.0


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
            return run_once(launcher, launch)
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


def run_once(launcher: Launcher, launch: Launch) -> Mapping[str, float]:
    """One start, to its end; the last metrics. Raises what :func:`run_ranks` raises."""
    out, node, count = launch.out, launcher.node_rank, launch.ranks_per_node
    with locked(out, f"lock-node-{node}" if node else "lock"), _passing_on() as forward:
        for rank in range(node * count, (node + 1) * count):
            end_path(out, rank).unlink(missing_ok=True)
        with contextlib.closing(launcher.start(launch.job())) as ranks:
            forward(ranks)
            return result(ranks.wait(), out)


@contextlib.contextmanager
def _passing_on() -> Iterator[Callable[[RunningRanks], None]]:
    """Signals that ask for a stop go to every rank; they agree on the step after which they do. Yields a function that is
    told of the ranks, once they run; what comes before that reaches them, too."""
    running: list[RunningRanks] = []
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        for ranks in running:
            ranks.signal(number)
        if not running:
            early.append(number)

    def forward(ranks: RunningRanks) -> None:
        running.append(ranks)
        while early:
            ranks.signal(early.pop(0))

    if threading.current_thread() is not threading.main_thread():
        yield forward
        return
    before: dict[signal.Signals, Callable[..., Any] | int | None] = {n: signal.signal(n, pass_on) for n in SIGNALS}
    try:
        yield forward
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def pause_after(failed: int) -> float:
    """Seconds before the next start: none after one that made progress, then 1, 2, 4, … while ``failed`` restarts have not."""
    return min(2.0 ** (failed - 1), LONGEST_PAUSE) if failed else 0.0


def newest(out: Path) -> str:
    """The newest checkpoint of a run by name, as its writer left it; it tells whether a start made progress."""
    try:
        return (out / "ckpt" / LATEST_NAME).read_text(encoding="utf-8")
    except OSError:
        return ""


def _record(out: Path, attempt: int, text: str) -> None:
    event = {"event": "warning", "time": time.time(), "kind": "restart", "attempt": attempt, "message": text}
    with (out / EVENTS_NAME).open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps(event, ensure_ascii=False) + "\n")  # the last line may be half a line
