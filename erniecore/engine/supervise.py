"""Several processes of one run on this machine: starts them, passes signals on, ends them all when one fails, and says
what the first one died of. Their talking to each other is ``paddle.distributed``'s, whose variables are set here as its
own launcher sets them; no paddle in this process.

Why not ``python -m paddle.distributed.launch`` itself, which may start a run as well: it gives the other ranks three
seconds when one fails and thirty after SIGTERM, too little to save a large state; it ends with the number of a signal
instead of an exit code; and the console is a copy of a log.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from erniecore import errors
from erniecore.engine import rundir
from erniecore.engine.launch import STACKS, paddle_variables
from erniecore.engine.stop import SIGNALS
from erniecore.engine.worker import REQUEST, end_path
from erniecore.errors import ConfigError, EnvironmentFault, ErnieError, Exit, Problem
from erniecore.types import Cluster

if TYPE_CHECKING:
    from erniecore.config.compose import Loaded

#: seconds that the other ranks have to end by themselves once one has failed, and again after being asked to
GRACE = 10.0
#: seconds that they have after rank 0, which ends last, has finished
FINISH = 60.0
#: codes of errors that are the consequence of another rank's end
_FOLLOWS = ("ERN-E021",)


@dataclass(eq=False)
class Rank:
    """One process. ``ended``: when it was seen to have ended."""

    number: int
    process: subprocess.Popen[bytes]
    ended: float = 0.0


@dataclass(frozen=True)
class End:
    """How a rank ended: its exit code or, below zero, the signal; and what it said of it, if it could."""

    rank: int
    status: int
    time: float
    record: Mapping[str, Any]

    @property
    def follows(self) -> bool:
        """Whether this is only the consequence of another rank's end."""
        code = self.record.get("fields", {}).get("code", "")
        return code in _FOLLOWS or bool(self.record.get("ours"))


def run_processes(loaded: Loaded, out: Path, count: int, *, name: str, console: str) -> Mapping[str, float]:
    """Run ``loaded`` in ``count`` processes to their end; the last metrics.

    Raises:
        ErnieError: the first error of the rank that failed first; ``Preempted`` when all were asked to stop.
        KeyboardInterrupt: interrupted twice.
    """
    with rundir.locked(out, "lock"), contextlib.ExitStack() as stack:
        for number in range(count):
            end_path(out, number).unlink(missing_ok=True)
        master = f"127.0.0.1:{free_port()}"
        ranks: list[Rank] = []
        stack.callback(_end_all, ranks)
        stack.enter_context(_passing_on(ranks))
        for number in range(count):
            cluster = Cluster(rank=number, world_size=count, local_rank=number, master=master)
            streams = stack.enter_context(_streams(out, number))
            ranks.append(Rank(number, _start(loaded, out, cluster, streams, name, console)))
        killed = _watch(ranks)
        return _result([_end(rank, out, killed) for rank in ranks], out)


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _streams(out: Path, rank: int) -> Iterator[tuple[IO[bytes] | None, IO[bytes]]]:
    """(stdout, stderr): the console belongs to rank 0, all else goes to ``logs/rank-N.out``."""
    with (out / "logs" / f"rank-{rank}.out").open("wb") as file:
        yield (None if rank == 0 else file), file


def _start(
    loaded: Loaded, out: Path, cluster: Cluster, streams: tuple[IO[bytes] | None, IO[bytes]], name: str, console: str
) -> subprocess.Popen[bytes]:
    file, overrides, flags = loaded.request
    request = {
        "file": None if file is None else str(file),
        "overrides": list(overrides),
        "flags": flags,
        "command": list(loaded.command),
        "console": console,
        "name": name,
        "out": str(out),
        "rank": cluster.rank,
        "parent": os.getpid(),
    }
    environ = {**os.environ, **paddle_variables(cluster), REQUEST: json.dumps(request)}
    return subprocess.Popen(
        [sys.executable, "-m", "erniecore.engine.worker"],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=streams[0],
        stderr=streams[1],
        start_new_session=True,  # the terminal's Ctrl-C comes to us alone, and each rank gets it once
    )


@contextlib.contextmanager
def _passing_on(ranks: Sequence[Rank]) -> Iterator[None]:
    """Signals that ask for a stop go to every rank; they agree on the step after which they do."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        _send(ranks, number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Callable[..., Any] | int | None] = {n: signal.signal(n, pass_on) for n in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _send(ranks: Sequence[Rank], number: int) -> None:
    for rank in ranks:
        if rank.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                rank.process.send_signal(number)


def _watch(ranks: Sequence[Rank]) -> set[int]:
    """Wait for all; once one has failed, or rank 0 has finished, the others have limited time. Ranks that were killed."""
    limits: list[tuple[float, int]] = []
    asked: set[int] = set()
    while True:
        for rank in ranks:
            status = rank.process.poll()
            if status is not None and not rank.ended:
                rank.ended = time.time()
                patience = GRACE if status else FINISH if rank.number == 0 else None
                if patience is not None and not limits:
                    now = time.monotonic()
                    limits = [(now + patience, signal.SIGTERM), (now + patience + GRACE, signal.SIGKILL)]
        alive = [rank for rank in ranks if not rank.ended]
        if not alive:
            return asked
        frozen = [rank for rank in alive if limits and state_of(rank.process.pid) == "T"]
        if frozen:  # it would neither end by itself nor hear a signal
            asked |= {rank.number for rank in frozen}
            _send(frozen, signal.SIGKILL)
        if limits and time.monotonic() > limits[0][0]:
            asked |= {rank.number for rank in alive}
            _send(alive, STACKS)
            time.sleep(0.2)
            _send(alive, limits.pop(0)[1])
        time.sleep(0.02)


def state_of(pid: int) -> str:
    """The letter by which Linux shows what a process does: R runs, S and D wait, T is stopped; empty elsewhere."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _end_all(ranks: Sequence[Rank]) -> None:
    """Whatever happens here, no rank stays behind."""
    for rank in ranks:
        if rank.process.poll() is None:
            rank.process.kill()
        rank.process.wait()


def _end(rank: Rank, out: Path, killed: set[int]) -> End:
    status, path = rank.process.returncode, end_path(out, rank.number)
    record: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        record = json.loads(path.read_bytes())
    path.unlink(missing_ok=True)
    when = float(record.get("time", rank.ended))
    return End(rank.number, status, when, {**record, "ours": rank.number in killed})


def _result(ends: Sequence[End], out: Path) -> Mapping[str, float]:
    """The metrics of rank 0, or the error that began the end."""
    failed = sorted((e for e in ends if e.status), key=lambda e: (e.follows, e.time))
    if not failed:
        metrics: Mapping[str, float] = ends[0].record.get("metrics", {})
        return metrics
    error = restored(failed[0], out)
    stuck = [str(end.rank) for end in ends if end.record.get("ours")]
    if isinstance(error, ErnieError) and failed[0].follows and stuck:
        error.fix = f"rank {', '.join(stuck)} no longer answered and was ended; look at its log and its stacks in {out / 'logs'}"
    raise error


def restored(end: End, out: Path) -> BaseException:
    """What ended a rank, as an exception of this process; the place names the rank and its log."""
    place = f"rank {end.rank}, {out / 'logs' / f'rank-{end.rank}.out'}"
    if not end.record.get("fields") and not end.record.get("class"):
        how = f"was killed by {_signal_name(-end.status)}" if end.status < 0 else f"ended with status {end.status}"
        fix = "continue with the same command; if it happens again, look at memory and at the kernel's log"
        return EnvironmentFault(f"a process of the run {how}", where=place, fix=fix, code="ERN-E020")
    if end.record["class"] == "KeyboardInterrupt":
        return KeyboardInterrupt()
    fields = dict(end.record["fields"])
    if end.record.get("problems"):
        return ConfigError([Problem(**problem) for problem in end.record["problems"]])
    if not end.record["class"]:
        fields["fix"] = "this is a bug in erniecore or in a plugin; the log of the rank has the traceback"
    found = getattr(errors, end.record["class"], ErnieError)
    where = fields.pop("where", "")
    error: ErnieError = found(fields.pop("message"), where=f"{where} ({place})" if where else place, **fields)
    error.exit_code = Exit(end.record["exit"])
    return error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
