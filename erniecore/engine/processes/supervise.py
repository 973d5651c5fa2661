"""Several processes of one run on this machine, alone or beside other machines (``nodes.py``): starts them, passes signals
on, ends them all when one fails, and says what the first one died of. Their talking to each other is
``paddle.distributed``'s, whose variables are set here as its own launcher sets them; no paddle in this process.

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
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from erniecore import errors
from erniecore.engine.launch import STACKS, paddle_variables
from erniecore.engine.preparation import rundir
from erniecore.engine.preparation.rundir import end_path
from erniecore.engine.processes.nodes import NODE, Link, Meeting, Site, interface_to
from erniecore.engine.stop import SIGNALS
from erniecore.errors import ConfigError, EnvironmentFault, ErnieError, Exit, Problem
from erniecore.types import Cluster

if TYPE_CHECKING:
    from erniecore.config.compose import Loaded

#: variable that holds the request to a process, as JSON
REQUEST = "ERNIECORE_REQUEST"
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


def run_processes(
    loaded: Loaded, out: Path, count: int, *, name: str, console: str, meeting: Meeting
) -> Mapping[str, float]:
    """Run ``loaded`` in ``count`` processes here, and as many on each other machine, to their end; the last metrics.

    Raises:
        ErnieError: the first error of the rank that failed first; ``Preempted`` when all were asked to stop.
        KeyboardInterrupt: interrupted twice.
    """
    site = meeting.site
    first = site.rank * count
    with rundir.locked(out, f"lock-node-{site.rank}" if site.rank else "lock"), contextlib.ExitStack() as stack:
        for number in range(first, first + count):
            end_path(out, number).unlink(missing_ok=True)
        link = meeting.join(count, free_port) if site.nodes > 1 else None
        if link is not None:
            stack.callback(link.close)
        ranks: list[Rank] = []
        stack.callback(_end_all, ranks)
        stack.enter_context(_passing_on(ranks))
        for cluster in clusters(site, count, link.start.master if link else f"127.0.0.1:{free_port()}"):
            streams = stack.enter_context(_streams(out, cluster.rank))
            process = _start(loaded, out, cluster, streams, name, console, node_variables(link))
            ranks.append(Rank(cluster.rank, process))
        killed = _watch(ranks, link)
        ends = [_end(rank, out, killed) for rank in ranks]
        if link is None:
            return _result(ends, out)
        return _result([End(**fields) for fields in link.gathered([asdict(end) for end in ends])], out, link)


def clusters(site: Site, count: int, master: str) -> list[Cluster]:
    """The ranks of this machine."""
    first, world = site.rank * count, site.nodes * count
    return [
        Cluster(rank=first + n, world_size=world, local_rank=n, num_nodes=site.nodes, master=master)
        for n in range(count)
    ]


def node_variables(link: Link | None) -> dict[str, str]:
    """What ranks must know of their machine: its name, and the interface that leads to the others."""
    if link is None:
        return {}
    interface = os.environ.get("GLOO_SOCKET_IFNAME") or interface_to(link.site.host)
    return {NODE: link.name, **({"GLOO_SOCKET_IFNAME": interface} if interface else {})}


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on now at an address of this machine; at all of them, if it is empty."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _streams(out: Path, rank: int) -> Iterator[tuple[IO[bytes] | None, IO[bytes]]]:
    """(stdout, stderr): the console belongs to rank 0, all else goes to ``logs/rank-N.out``."""
    with (out / "logs" / f"rank-{rank}.out").open("wb") as file:
        yield (None if rank == 0 else file), file


def _start(
    loaded: Loaded,
    out: Path,
    cluster: Cluster,
    streams: tuple[IO[bytes] | None, IO[bytes]],
    name: str,
    console: str,
    more: Mapping[str, str],
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
    environ = {**os.environ, **paddle_variables(cluster), **more, REQUEST: json.dumps(request)}
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


def _watch(ranks: Sequence[Rank], link: Link | None = None) -> set[int]:
    """Wait for all of this machine; once one has failed, or rank 0 has finished, the others have limited time. Ranks that
    were killed."""
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
        failed = any(rank.ended and rank.process.returncode for rank in ranks)
        if link is not None and link.look(failed) and not limits:
            now = time.monotonic()
            limits = [(now + GRACE, signal.SIGTERM), (now + 2 * GRACE, signal.SIGKILL)]
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


def _result(ends: Sequence[End], out: Path, link: Link | None = None) -> Mapping[str, float]:
    """The metrics of rank 0, or the error that began the end."""
    failed = sorted((e for e in ends if e.status), key=lambda e: (e.follows, e.time))
    if not failed:
        metrics: Mapping[str, float] = min(ends, key=lambda e: e.rank).record.get("metrics", {})
        return metrics
    error = restored(failed[0], out, _node_of(failed[0], link))
    stuck = [str(end.rank) for end in ends if end.record.get("ours")]
    if isinstance(error, ErnieError) and failed[0].follows and stuck:
        error.fix = f"rank {', '.join(stuck)} no longer answered and was ended; look at its log and its stacks in {out / 'logs'}"
    raise error


def _node_of(end: End, link: Link | None) -> str:
    """The machine on which a rank ran, where there are several."""
    return "" if link is None or end.rank < 0 else f" on {link.start.names[end.rank // link.start.local]}"


def restored(end: End, out: Path, node: str = "") -> BaseException:
    """What ended a rank, as an exception of this process; the place names the rank, its machine and its log."""
    place = f"rank {end.rank}{node}, {out / 'logs' / f'rank-{end.rank}.out'}"
    if end.rank < 0:  # a machine
        fields = dict(end.record["fields"])
        return EnvironmentFault(fields.pop("message"), **fields)
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
