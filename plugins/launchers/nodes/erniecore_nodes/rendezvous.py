"""Where the agents of a run on several nodes find each other, start after start. Each end shows that it knows the secret before
anything that the other one says is used. No paddle."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence

from erniecore.api import ConfigError, EnvironmentFault
from erniecore.api.files import printable
from erniecore.api.launcher import node_name
from erniecore_nodes.agents import AgentGroup, Connection, Node, World
from erniecore_nodes.channel import FIRST_MOST, Distrusted
from erniecore_nodes.handshake import FAULTS, Arrival, Handshakes, introduce

#: seconds that the agents have to find each other, also before a restart
TIMEOUT = 600.0


class Rendezvous:
    """Where the agents find each other, start after start.

    Args:
        tell: told whom it waits for, and who was refused.
    """

    def __init__(self, node: Node, tell: Callable[[str], None]) -> None:
        self.node, self._tell = node, tell
        self.name = node_name()
        self._listener: socket.socket | None = None
        if node.nodes > 1 and not node.rank:
            self._listener = listen(node)
            self._handshakes = Handshakes(self._listener, node.secret, tell)

    def join(self, local: int, store: Callable[[], int]) -> AgentGroup:
        """Wait until all agents are here.

        Args:
            local: ranks on this machine, as many as on each. store: a free port for the ranks' store.
        Raises:
            EnvironmentFault: some did not come; names them. ConfigError: the machines do not share a secret.
        """
        return self._accept_all(local, store()) if self._listener is not None else self._connect(local)

    def close(self) -> None:
        """Nobody else may come."""
        if self._listener is not None:
            self._listener.close()

    # ---- on the first machine
    def _accept_all(self, local: int, port: int) -> AgentGroup:
        connections: dict[int, Connection] = {}
        end = time.monotonic() + TIMEOUT
        self._tell(f"waiting at {self.node.master} for {self.node.nodes - 1} more machine(s)")
        try:
            while len(connections) < self.node.nodes - 1:
                if time.monotonic() > end:
                    missing = [str(n) for n in range(1, self.node.nodes) if n not in connections]
                    raise self._incomplete(f"missing: machine {', '.join(missing)}")
                for arrival in self._handshakes.look(wait=0.2):
                    connection = self._hello(arrival, local)
                    if connection is not None:
                        if connection.node in connections:  # it has begun again
                            connections[connection.node].channel.close()
                        connections[connection.node] = connection
        except BaseException:
            for connection in connections.values():
                connection.channel.close()
            raise
        finally:
            self._handshakes.dismiss()
        names = unique([self.name, *(connections[n].name for n in range(1, self.node.nodes))])
        world = World(f"{self.node.host}:{port}", names, local)
        for connection in connections.values():
            connection.name, connection.channel.heard = names[connection.node], time.monotonic()
            connection.send(do="start", master=world.master, names=names)
        return AgentGroup(self.node, list(connections.values()), world)

    def _hello(self, arrival: Arrival, local: int) -> Connection | None:
        """The first message of an agent; one that was started otherwise is refused."""
        channel, said = arrival.channel, arrival.hello
        try:
            node = said["node"]
            if not isinstance(node, int) or not 0 < node < self.node.nodes:
                raise ValueError("no machine of this run")
            for key, theirs, ours in (
                ("launcher.nodes", said["nodes"], self.node.nodes),
                ("launcher.nproc", said["local"], local),
            ):
                if theirs != ours:
                    channel.send(do="refused", key=key, message=f"{theirs} here, but {ours} on the first machine")
                    raise ValueError("started otherwise")
            channel.send(do="welcome")
            return Connection(node, printable(str(said["name"]))[:200], channel)
        except FAULTS as error:
            self._handshakes.refuse(channel, arrival.address, error)
            return None

    # ---- on the others
    def _connect(self, local: int) -> AgentGroup:
        end, found = time.monotonic() + TIMEOUT, ""
        while time.monotonic() < end:
            try:
                peer = socket.create_connection((self.node.host, self.node.port), timeout=5.0)
            except OSError as error:
                found = str(error)
                time.sleep(0.5)
                continue
            try:
                return self._welcomed(peer, local, end)
            except ConfigError:
                peer.close()
                raise
            except (OSError, ValueError, KeyError, TypeError) as error:
                peer.close()
                found = str(error)
                time.sleep(0.5)
        raise self._incomplete(found)

    def _welcomed(self, peer: socket.socket, local: int, end: float) -> AgentGroup:
        """Say who this is, see that the other end knows the secret, and wait until it begins."""
        hello = {"node": self.node.rank, "name": self.name, "local": local, "nodes": self.node.nodes}
        try:
            channel, said = introduce(peer, self.node.secret, end, **hello)
        except Distrusted as error:
            raise ConfigError.at(
                "launcher.secret_file",
                f"the first machine ({self.node.master}) does not have the same secret",
                fix="give every machine the same one",
            ) from error
        if said["do"] == "refused":
            raise ConfigError.at(str(said["key"]), str(said["message"]))
        said = channel.await_message(end, FIRST_MOST + 256 * self.node.nodes)
        names = [str(name) for name in said["names"]]
        if len(names) != self.node.nodes:
            raise Distrusted("the first machine names other machines")
        channel.heard = time.monotonic()
        return AgentGroup(self.node, [Connection(0, names[0], channel)], World(str(said["master"]), names, local))

    def _incomplete(self, found: str) -> EnvironmentFault:
        return EnvironmentFault(
            f"the machines of the run did not find each other within {TIMEOUT:.0f} s",
            where=self.node.master,
            found=found,
            fix="does --master name the first machine, is the port open, and was the command started on every machine?",
            code="ERN-E022",
        )


def listen(node: Node) -> socket.socket:
    """Without a secret the loopback interface alone, unless the settings say otherwise."""
    try:
        return socket.create_server((node.host if node.on_loopback else "", node.port), backlog=1024)
    except OSError as error:
        fix = "choose another port in launcher.master (--master)"
        raise EnvironmentFault("the port is taken", where=node.master, found=str(error), fix=fix) from error


def unique(names: Sequence[str]) -> list[str]:
    """Names of which several are the same get their number."""
    return [f"{name}-{i}" if names.count(name) > 1 else name for i, name in enumerate(names)]
