"""The agents of one run on several nodes, one per node: they start their ranks together, tell each other when a rank has
failed and how all ranks ended, and notice when a node, or the network, is gone. A few lines of JSON over one connection
per node; what the ranks compute together is not sent here. No paddle.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from erniecore.api import ConfigError, EnvironmentFault
from erniecore.api.launcher import RankExit

#: seconds between two heartbeats, and of silence after which a node counts as lost
HEARTBEAT, SILENCE = 2.0, 15.0


@dataclass(frozen=True)
class Node:
    """This machine among those of the run. ``master``: ``host:port`` of the first one, where its agent listens."""

    nodes: int = 1
    rank: int = 0
    master: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < max(self.nodes, 1):
            raise ConfigError.at("launcher.node_rank", f"must be below launcher.nodes ({self.nodes}; got {self.rank})")
        host, _, port = self.master.rpartition(":")
        if self.nodes > 1 and not (host and port.isdigit()):
            raise ConfigError.at("launcher.master", f"host:port of the first machine (got {self.master!r})")

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
    """A connection to another agent."""

    node: int
    name: str
    socket: socket.socket
    heard: float = field(default_factory=time.monotonic)
    text: bytes = b""
    lost: str = ""

    def send(self, **message: Any) -> None:
        """One message; a connection that breaks is noted."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self.lost = self.lost or str(error)

    def messages(self) -> list[dict[str, Any]]:
        """What has come since the last look; does not wait."""
        found = []
        while not self.lost and select.select([self.socket], [], [], 0)[0]:
            try:
                data = self.socket.recv(1 << 16)
            except OSError as error:
                self.lost = str(error)
                break
            if not data:
                self.lost = "its agent has ended"
                break
            self.heard, self.text = time.monotonic(), self.text + data
        *whole, self.text = self.text.split(b"\n")
        for connection in whole:
            with suppress(ValueError):
                found.append(json.loads(connection))
        if not self.lost and time.monotonic() - self.heard > SILENCE:
            self.lost = f"silent for {SILENCE:.0f} s"
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
                    time.time() - (time.monotonic() - connection.heard),
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
        elif message["do"] == "ended":
            self.ends[connection.node] = message["ends"]
        elif message["do"] == "result":
            self.result = message["ends"]

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
                connection.socket.shutdown(socket.SHUT_WR)
            connection.socket.close()
