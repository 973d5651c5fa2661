"""The agents of one run on several nodes, one per node: they start their ranks together, tell each other when a rank has
failed and how all ranks ended, and notice when a node, or the network, is gone. A few lines of JSON over one connection
per node; what the ranks compute together is not sent here. No paddle.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from erniecore_system.addresses import is_loopback

from erniecore.api import ConfigError, EnvironmentFault
from erniecore.api.launcher import RankExit
from erniecore_nodes.channel import MOST, SECRET, Channel, Distrusted

#: seconds between two heartbeats, and of silence after which a node counts as lost
HEARTBEAT, SILENCE = 2.0, 15.0
#: messages of one machine that one look takes
_AT_ONCE = 64


@dataclass(frozen=True)
class Node:
    """This machine among those of the run. ``master``: ``host:port`` of the first one, where its agent listens. ``secret``: what
    all machines know and nobody else; ``insecure``: none is needed. Raises ``ConfigError`` for what cannot be."""

    nodes: int = 1
    rank: int = 0
    master: str = ""
    secret: bytes = field(default=b"", repr=False)
    insecure: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < max(self.nodes, 1):
            raise ConfigError.at("launcher.node_rank", f"must be below launcher.nodes ({self.nodes}; got {self.rank})")
        host, _, port = self.master.rpartition(":")
        if self.nodes > 1 and not (host and port.isdigit()):
            raise ConfigError.at("launcher.master", f"host:port of the first machine (got {self.master!r})")
        if self.nodes > 1 and not (self.secret or self.insecure or self.on_loopback):
            raise ConfigError.at(
                "launcher.secret_file",
                f"{self.host} is reached over a network: the machines must share a secret",
                fix=f"`openssl rand -hex 32 > secret`, the same file on every machine, launcher.secret_file=secret or the "
                f"secret itself in {SECRET}; launcher.insecure=true where nobody else can reach the network",
            )

    @property
    def on_loopback(self) -> bool:
        """Whether the first machine is this one, under an address that no other can reach."""
        return is_loopback(self.host)

    @property
    def host(self) -> str:
        """Of the first machine."""
        return self.master.rpartition(":")[0]

    @property
    def port(self) -> int:
        """Where its agent listens."""
        return int(self.master.rpartition(":")[2])


#: a run on one node
ALONE = Node()


@dataclass(frozen=True)
class World:
    """What all begin with: ``host:port`` of the ranks' store, the machines' names in order, ranks on each."""

    master: str
    names: Sequence[str]
    local: int


@dataclass(eq=False)
class Connection:
    """A connection to another agent, whose ends have both shown that they know the secret."""

    node: int
    name: str
    channel: Channel

    @property
    def lost(self) -> str:
        """Why it is of no use any more; empty while it is."""
        return self.channel.lost

    def send(self, **message: Any) -> None:
        """One message; a connection that breaks is noted."""
        self.channel.send(**message)

    def messages(self) -> list[dict[str, Any]]:
        """What has come since the last look; does not wait."""
        return heard(self.channel)


def heard(channel: Channel) -> list[dict[str, Any]]:
    """What has come over a connection since the last look; one that breaks or is silent is noted in ``channel.lost``."""
    found: list[dict[str, Any]] = []
    try:
        while not channel.lost and len(found) < _AT_ONCE and (line := channel.read(MOST)) is not None:
            found.append(channel.unpack(line))
    except (OSError, Distrusted) as error:
        channel.lost = str(error)
    if not channel.lost and time.monotonic() - channel.heard > SILENCE:
        channel.lost = f"silent for {SILENCE:.0f} s"
    return found


class AgentGroup:
    """The agents of one start. The first machine passes on what the others tell it.

    Attributes:
        failed: a rank of some machine has failed, or a machine is lost.
        ends: how the ranks of all machines ended, once that is known.
        lost: machines that are gone: node -> (name, what was found, when).
    """

    def __init__(self, node: Node, connections: Sequence[Connection], world: World) -> None:
        self.node, self.connections, self.world = node, list(connections), world
        self.failed, self.ends = False, dict[int, list[Any]]()
        self.lost: dict[int, tuple[str, str, float]] = {}
        self.result: list[Any] | None = None
        self._told, self._spoke = False, 0.0

    @property
    def name(self) -> str:
        """Name of this node."""
        return self.world.names[self.node.rank]

    def look(self, failed: bool = False) -> bool:
        """Hear what the others say, tell them whether a rank has failed here; whether one has anywhere."""
        if time.monotonic() - self._spoke > HEARTBEAT:
            self._spoke = time.monotonic()
            self._tell(do="alive")
        for connection in self.connections:
            if connection.node in self.lost:
                continue
            for message in connection.messages():
                self._hear(connection, message)
            if connection.lost and self.result is None and connection.node not in self.ends:
                self.lost[connection.node] = (
                    connection.name,
                    connection.lost,
                    time.time() - (time.monotonic() - connection.channel.heard),
                )
        if (failed or self.failed or self.lost) and not self._told:
            self.failed = self._told = True
            self._tell(do="failed")
        return self.failed

    def _tell(self, **message: Any) -> None:
        for connection in self.connections:
            connection.send(**message)

    def _hear(self, connection: Connection, message: Mapping[str, Any]) -> None:
        if message["do"] == "failed":
            self.failed = True
        elif message["do"] in ("ended", "result"):
            try:
                ends = [RankExit(**fields) for fields in message["ends"]]
            except (KeyError, TypeError) as error:
                connection.channel.lost = f"its agent is of another version: {error}"
                return
            if message["do"] == "result":
                self.result = [asdict(ended) for ended in ends]
            else:
                self.ends[connection.node] = [asdict(ended) for ended in ends]

    def gather(self, exits: Sequence[RankExit]) -> list[RankExit]:
        """The exits of the ranks of all nodes, the same on each; waits for the nodes that are there."""
        return [RankExit(**fields) for fields in self._gather([asdict(ended) for ended in exits])]

    def _gather(self, ends: list[Any]) -> list[Any]:
        self.ends[self.node.rank] = ends
        if self.node.rank:
            self._tell(do="ended", ends=ends)
            while self.result is None and not self.lost:
                self.look(self.failed)
                time.sleep(0.02)
            return self.result if self.result is not None else [*ends, *self._gone()]
        while any(
            connection.node not in self.ends and connection.node not in self.lost for connection in self.connections
        ):
            self.look(self.failed)
            time.sleep(0.02)
        everything = [*(end for part in self.ends.values() for end in part), *self._gone()]
        self.result = everything
        self._tell(do="result", ends=everything)
        return everything

    def _gone(self) -> list[Any]:
        """A machine that is lost, as the end of its first rank."""
        found = []
        for node, (name, why, when) in self.lost.items():
            error = EnvironmentFault(
                f"lost contact with {name}",
                where=f"machine {node} of {self.node.nodes}",
                found=why,
                fix="look at that machine and at the network to it; the same command continues on all machines",
                code="ERN-E025",
            )
            record = {"class": "EnvironmentFault", "fields": error.fields(), "exit": int(error.exit_code)}
            found.append({"rank": -1 - node, "status": 1, "time": when, "record": record})
        return found

    def close(self) -> None:
        """End the connections; what was sent arrives."""
        for connection in self.connections:
            with suppress(OSError):
                connection.channel.socket.shutdown(socket.SHUT_WR)
            connection.channel.close()
