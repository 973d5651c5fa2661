"""Ranks as processes of this machine: starts them and ends them all when one fails. Their collectives are
``paddle.distributed``'s, whose variables are set here as its own launcher sets them; no paddle in this process.

Why not ``python -m paddle.distributed.launch`` itself, which may start a run as well: it gives the other ranks three
seconds when one fails and thirty after SIGTERM, too little to save a large state; it ends with the number of a signal
instead of an exit code; and the console is a copy of a log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from erniecore_system import lifeline

from erniecore.builtin.local_launcher.config import LocalConfig
from erniecore.builtin.local_launcher.limits import Limits
from erniecore.engine.launch import STACKS, paddle_variables
from erniecore.engine.processes.exits import read_exit
from erniecore.engine.processes.network import free_port
from erniecore.types.launcher import Launcher, RankExit, RankJob, RunningRanks
from erniecore.types.run import Cluster


class LocalLauncher(Launcher):
    """A launcher whose ranks are child processes of this one, on one machine."""

    def __init__(self, config: LocalConfig) -> None:
        self.ranks_per_node, self.restarts = config.nproc, config.restarts

    def start(self, job: RankJob) -> LocalRanks:
        """Start one process per rank; they find each other at a free port of this machine."""
        ranks = LocalRanks(job)
        ranks.start(clusters(job.ranks_per_node, f"127.0.0.1:{free_port()}"))
        return ranks


def clusters(count: int, master: str, nodes: int = 1, node_rank: int = 0) -> list[Cluster]:
    """The ranks of a node."""
    first, world = node_rank * count, nodes * count
    return [
        Cluster(rank=first + n, world_size=world, local_rank=n, num_nodes=nodes, master=master) for n in range(count)
    ]


@dataclass(eq=False)
class Rank:
    """One process. ``ended``: when it was seen to have ended."""

    number: int
    process: subprocess.Popen[bytes]
    ended: float = 0.0


class LocalRanks(RunningRanks):
    """The processes of one start on this machine.

    Args:
        node: name of this machine, where there are several. variables: what its ranks must know of it.
        without: variables of this process that they must not get.
    """

    def __init__(
        self, job: RankJob, node: str = "", variables: Mapping[str, str] | None = None, without: Iterable[str] = ()
    ) -> None:
        self.job, self.node, self.variables, self.without = job, node, variables or {}, set(without)
        self.ranks: list[Rank] = []
        self._streams = contextlib.ExitStack()

    def start(self, places: Iterable[Cluster]) -> None:
        """Start one process per place, or none."""
        try:
            self._start(places)
        except BaseException:
            self.close()
            raise

    def _start(self, places: Iterable[Cluster]) -> None:
        own = {name: value for name, value in os.environ.items() if name not in self.without}
        shared = {**own, **self.job.environment, **self.variables, **lifeline.variables()}
        for place in places:
            stdout, stderr = self._streams.enter_context(_streams(self.job.out, place.rank))
            process = subprocess.Popen(
                self.job.argv,
                env={**shared, **paddle_variables(place)},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,  # the terminal's Ctrl-C comes to the launcher alone; each rank gets it once
            )
            self.ranks.append(Rank(place.rank, process))

    def wait(self) -> Sequence[RankExit]:
        stopped = _watch(self.ranks, self.failed_elsewhere)
        out, node = self.job.out, self.node
        return [
            read_exit(out, r.number, r.process.returncode, r.ended, stopped=r.number in stopped, node=node)
            for r in self.ranks
        ]

    def failed_elsewhere(self, failed: bool) -> bool:
        """Whether a rank of another node has failed; asked again and again. ``failed``: one of this node has."""
        return False

    def signal(self, number: int) -> None:
        _send(self.ranks, number)

    def close(self) -> None:
        """Kill what still runs."""
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.kill()
            rank.process.wait()
        self._streams.close()


@contextlib.contextmanager
def _streams(out: Path, rank: int) -> Iterator[tuple[IO[bytes] | None, IO[bytes]]]:
    """(stdout, stderr): the console belongs to rank 0, all else goes to ``logs/rank-N.out``."""
    with (out / "logs" / f"rank-{rank}.out").open("wb") as file:
        yield (None if rank == 0 else file), file


def _send(ranks: Iterable[Rank], number: int) -> None:
    for rank in ranks:
        if rank.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                rank.process.send_signal(number)


def _watch(ranks: Sequence[Rank], failed_elsewhere: Callable[[bool], bool]) -> set[int]:
    """Wait for all of this node; once one has failed, or rank 0 has finished, the others have limited time. Returns the
    ranks that had to be stopped."""
    limits, asked = Limits(), set[int]()
    while True:
        for rank in ranks:
            status = rank.process.poll()
            if status is not None and not rank.ended:
                rank.ended = time.time()
                if status or rank.number == 0:
                    limits.begin(failed=bool(status))
        alive = [rank for rank in ranks if not rank.ended]
        if not alive:
            return asked
        if failed_elsewhere(any(rank.ended and rank.process.returncode for rank in ranks)):
            limits.begin(failed=True)
        frozen = [rank for rank in alive if limits.begun and state_of(rank.process.pid) == "T"]
        if frozen:  # it would neither end by itself nor handle a signal
            asked |= {rank.number for rank in frozen}
            _send(frozen, signal.SIGKILL)
        number = limits.due()
        if number is not None:
            asked |= {rank.number for rank in alive}
            _send(alive, STACKS)
            time.sleep(0.2)
            _send(alive, number)
        time.sleep(0.02)


def state_of(pid: int) -> str:
    """The letter by which Linux shows what a process does: R runs, S and D wait, T is stopped; empty elsewhere."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
