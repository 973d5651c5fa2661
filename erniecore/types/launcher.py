"""What a launcher implements: it starts the ranks of a run on one or several nodes, watches them, and says how they ended.
Restarting, signals, the run directory and what an exit means are the engine's. No paddle in the process of a launcher.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: codes of errors that are the consequence of another rank's end
_FOLLOWING = ("ERN-E021",)


@dataclass(frozen=True)
class RankJob:
    """What every rank of one start runs.

    A rank finds its place (rank, world size, local rank, number of nodes, address of the store) in its environment: in
    Paddle's variables (``erniecore.api.launcher.paddle_variables``), or in those that torchrun or srun set.

    Attributes:
        argv: the command, the same for all ranks.
        environment: variables that every rank needs besides its place.
        out: the run directory, which all nodes share. ``logs/rank-N.out`` in it is for the output of rank N; the
            console belongs to rank 0.
        ranks_per_node: how many ranks every node has.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    out: Path
    ranks_per_node: int


@dataclass(frozen=True)
class RankExit:
    """How a rank ended.

    Attributes:
        rank: its number; below zero: node ``-1 - rank`` is lost as a whole.
        status: exit code or, below zero, the number of the signal.
        time: when, in seconds since the epoch: the earliest failure is the one that is reported.
        record: what the rank said of it, as ``erniecore.api.launcher.read_exit`` reads it; empty if it could not.
        stopped: the launcher ended it, because another rank had ended or it no longer answered.
        node: name of its node, where there are several.
    """

    rank: int
    status: int
    time: float
    record: Mapping[str, Any] = field(default_factory=dict)
    stopped: bool = False
    node: str = ""

    @property
    def follows(self) -> bool:
        """Whether this is only the consequence of another rank's end."""
        return self.stopped or self.record.get("fields", {}).get("code", "") in _FOLLOWING


class RunningRanks(ABC):
    """The ranks of one start, seen from one node."""

    @abstractmethod
    def wait(self) -> Sequence[RankExit]:
        """Watch until all ranks have ended; the exits of all ranks of all nodes, the same on every node.

        Once a rank has failed, the others get limited time to end by themselves, then SIGTERM, then SIGKILL: a rank
        that waits for a lost one would wait forever.
        """

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send a signal to every rank of this node that still runs. Called from a signal handler: it does not block."""

    @abstractmethod
    def close(self) -> None:
        """Leave no rank of this node behind, whatever has happened. May be called after ``wait`` and instead of it."""


class Launcher(ABC):
    """Starts the ranks of a run. One object per ``ernie run``; with several nodes each node has one.

    The engine calls ``open``, then for every start ``start``, ``wait`` and ``close`` of what it returned, then ``close``.
    It starts again, at most ``restarts`` times, when a rank was killed or lost; errors of settings, data or numbers are
    not retried. The exit code of ``ernie run`` is that of the rank that failed first.

    Attributes:
        nodes: machines of the run; ``node_rank``: which of them this one is, from 0. Node 0 writes the events.
        ranks_per_node: ranks to start on every node; 0: as many as the parallel strategy needs.
        restarts: how often a run is started again; with 0 and one rank the run needs no launcher at all.
    """

    nodes: int = 1
    node_rank: int = 0
    ranks_per_node: int = 0
    restarts: int = 0

    def open(self, note: Callable[[str], None]) -> None:
        """Called once before the first start, e.g. to listen for the other nodes. ``note`` shows a line to the user.

        Raises ``EnvironmentFault``."""
        return

    @abstractmethod
    def start(self, job: RankJob) -> RunningRanks:
        """Start the ranks of this node, with several nodes once all of them are there.

        Raises:
            EnvironmentFault: the nodes did not find each other (ERN-E022), or a process cannot be started. No rank is
                left behind.
        """

    def close(self) -> None:
        """Called once at the end."""
        return
