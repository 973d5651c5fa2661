"""The processes of one start on one machine. What ends a start on all machines is decided by the first one; the others do
what it says. No paddle.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from erniecore_nodes.channel import SECRET
from erniecore_nodes.launcher import interface_to

from erniecore.api import Exit
from erniecore.api.launcher import NODE, TRANSIENT, Cluster, LocalRanks, RankExit, RankJob, with_overrides


@dataclass(frozen=True)
class Order:
    """What one machine is to start.

    Attributes:
        number: of the start, from 1. master: ``host:port`` of the ranks' store. overrides: settings of the layout.
        first: number of this machine's first rank. ranks: on this machine; 0: it waits. world: ranks on all of them.
        nodes: machines with ranks. resume: from the newest checkpoint.
    """

    number: int
    master: str
    overrides: tuple[str, ...]
    first: int
    ranks: int
    world: int
    nodes: int
    resume: bool

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Order:
        """From a message of the first machine. Raises ``TypeError`` for one of another version."""
        fields = {key: value for key, value in message.items() if key != "do"}
        return cls(**{**fields, "overrides": tuple(map(str, fields.get("overrides", ())))})

    def message(self) -> dict[str, Any]:
        """The other way round."""
        return {"do": "start", **asdict(self)}

    def places(self) -> list[Cluster]:
        """Of this machine's ranks."""
        return [
            Cluster(self.first + n, self.world, local_rank=n, num_nodes=self.nodes, master=self.master)
            for n in range(self.ranks)
        ]


class OwnRanks(LocalRanks):
    """The processes of one start on this machine.

    Args:
        look: called again and again while they run; whether they are to be killed.
    """

    def __init__(self, job: RankJob, order: Order, name: str, host: str, look: Callable[[bool], bool]) -> None:
        interface = os.environ.get("GLOO_SOCKET_IFNAME") or interface_to(host)
        variables = {NODE: name, **({"GLOO_SOCKET_IFNAME": interface} if interface else {})}
        super().__init__(with_overrides(job, order.overrides, resume=order.resume), name, variables, without=[SECRET])
        self._look = look

    def failed_elsewhere(self, failed: bool) -> bool:
        """Those of a start that has failed are killed at once: what they have in memory is of no use without the others."""
        if self._look(failed):
            self.signal(signal.SIGKILL)
            return True
        return False


def run_order(
    job: RankJob, order: Order, name: str, host: str, look: Callable[[bool], bool], begun: Callable[[OwnRanks], None]
) -> list[RankExit]:
    """Start what ``order`` says on this machine, and wait until it has ended; ``begun``: told of the processes."""
    ranks = OwnRanks(job, order, name, host, look)
    try:
        ranks.start(order.places())
        begun(ranks)
        return list(ranks.wait())
    finally:
        ranks.close()


def as_messages(exits: Sequence[RankExit]) -> list[dict[str, Any]]:
    """Exits of ranks, to be sent."""
    return [asdict(ended) for ended in exits]


def outcome(exits: Sequence[RankExit]) -> str:
    """How a start ended: ``done``, ``saved`` (all ranks stopped after a step), ``lost`` (it may be started again), ``failed``."""
    if all(ended.status == 0 for ended in exits):
        return "done"
    if all(ended.status in (0, int(Exit.PREEMPTED)) for ended in exits):
        return "saved"
    first = min((ended for ended in exits if ended.status), key=lambda ended: (ended.follows, ended.time))
    code = first.record.get("fields", {}).get("code", "")
    killed = not first.record.get("fields") and not first.record.get("class")
    return "lost" if killed or code in TRANSIENT else "failed"
