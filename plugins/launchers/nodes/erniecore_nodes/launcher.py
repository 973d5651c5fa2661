"""The ranks of one run on several machines: those of this machine are processes as ``local`` starts them, and the agents of
the machines (``agents.py``) begin, fail and end together. No paddle here.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress

from erniecore.api.launcher import (
    NODE,
    Launcher,
    LocalConfig,
    LocalRanks,
    RankExit,
    RankJob,
    clusters,
    free_port,
)
from erniecore_nodes.agents import AgentGroup, Node
from erniecore_nodes.channel import SECRET, read_secret
from erniecore_nodes.rendezvous import Rendezvous

_SIOCGIFADDR = 0x8915


class NodesLauncher(Launcher):
    """A launcher for one of several machines: its ranks are child processes, its agent talks to the others."""

    def __init__(self, config: LocalConfig) -> None:
        """Raises ``ConfigError`` for a node that cannot be, or has no secret where one is needed."""
        self._notes: list[str] = []
        secret = read_secret(config.secret_file, os.environ, self._notes.append)
        self.node = Node(config.nodes, config.node_rank, config.master, secret, config.insecure)
        self.nodes, self.node_rank = config.nodes, config.node_rank
        self.ranks_per_node, self.restarts = config.nproc, config.restarts
        self._rendezvous: Rendezvous | None = None

    def open(self, note: Callable[[str], None]) -> None:
        """Listen on the first node. Raises ``EnvironmentFault`` if the port is taken."""
        for text in self._notes:
            note(text)
        self._rendezvous = Rendezvous(self.node, note)

    def start(self, job: RankJob) -> NodesRanks:
        """Start this node's processes. Raises ``EnvironmentFault`` if the nodes do not find each other."""
        assert self._rendezvous is not None
        ranks = NodesRanks(job, self._rendezvous.join(job.ranks_per_node, free_port))
        ranks.start(clusters(job.ranks_per_node, ranks.group.world.master, self.nodes, self.node_rank))
        return ranks

    def close(self) -> None:
        """Close the port on which the first node listens."""
        if self._rendezvous is not None:
            self._rendezvous.close()


class NodesRanks(LocalRanks):
    """The processes of one start on this machine, beside those of the others."""

    def __init__(self, job: RankJob, group: AgentGroup) -> None:
        interface = os.environ.get("GLOO_SOCKET_IFNAME") or interface_to(group.node.host)
        variables = {NODE: group.name, **({"GLOO_SOCKET_IFNAME": interface} if interface else {})}
        super().__init__(job, group.name, variables, without=[SECRET])
        self.group = group

    def wait(self) -> Sequence[RankExit]:
        """The exits of the ranks of all nodes."""
        return self.group.gather(super().wait())

    def failed_elsewhere(self, failed: bool) -> bool:
        """Tell the other agents of a failure here, and hear of theirs."""
        return self.group.look(failed)

    def close(self) -> None:
        """Kill what still runs, and leave the other agents."""
        super().close()
        self.group.close()


def interface_to(host: str) -> str:
    """The network interface by which this machine reaches ``host``; ``""`` where that cannot be found out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((host, 9))
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                packed = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
                if socket.inet_ntoa(packed[20:24]) == own:
                    return name
    return ""
