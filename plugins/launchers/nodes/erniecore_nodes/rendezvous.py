"""Where the agents of a run on several nodes find each other, start after start. No paddle."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence

from erniecore.api import ConfigError, EnvironmentFault
from erniecore.api.launcher import node_name
from erniecore_nodes.agents import AgentGroup, Connection, Node, World

#: seconds that the agents have to find each other, also before a restart
TIMEOUT = 600.0


class Rendezvous:
    """Where the agents find each other, start after start.

    Args:
        tell: told whom it waits for.
    """

    def __init__(self, node: Node, tell: Callable[[str], None]) -> None:
        self.node, self._tell = node, tell
        self.name = node_name()
        self._listener: socket.socket | None = None
        if node.nodes > 1 and not node.rank:
            self._listener = _listen(node)

    def join(self, local: int, store: Callable[[], int]) -> AgentGroup:
        """Wait until all agents are here.

        Args:
            local: ranks on this machine, as many as on each. store: a free port for the ranks' store.
        Raises:
            EnvironmentFault: some did not come; names them.
        """
        return self._accept_all(local, store()) if self._listener is not None else self._connect(local)

    def close(self) -> None:
        """Nobody else may come."""
        if self._listener is not None:
            self._listener.close()

    def _accept_all(self, local: int, port: int) -> AgentGroup:
        assert self._listener is not None
        connections: dict[int, Connection] = {}
        end = time.monotonic() + TIMEOUT
        self._tell(f"waiting at {self.node.master} for {self.node.nodes - 1} more machine(s)")
        while len(connections) < self.node.nodes - 1:
            self._listener.settimeout(max(0.01, end - time.monotonic()))
            try:
                peer, _ = self._listener.accept()
                connection = _hello(peer, self.node, local)
            except (OSError, ValueError, KeyError) as error:
                if time.monotonic() < end:
                    continue  # a stranger, or one that has gone again
                missing = [str(n) for n in range(1, self.node.nodes) if n not in connections]
                raise self._incomplete(f"missing: machine {', '.join(missing)}") from error
            connections[connection.node] = connection
        names = unique([self.name, *(connections[n].name for n in range(1, self.node.nodes))])
        world = World(f"{self.node.host}:{port}", names, local)
        for connection in connections.values():
            connection.name, connection.heard = names[connection.node], time.monotonic()
            connection.send(do="start", master=world.master, names=names)
        return AgentGroup(self.node, list(connections.values()), world)

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
            except (OSError, ValueError) as error:
                peer.close()
                found = str(error)
                if isinstance(error, ConfigError):
                    raise
                time.sleep(0.5)
        raise self._incomplete(found)

    def _welcomed(self, peer: socket.socket, local: int, end: float) -> AgentGroup:
        """Say who this is, and wait until the first machine begins."""
        connection = Connection(0, "", peer)
        connection.send(do="hello", node=self.node.rank, name=self.name, local=local, nodes=self.node.nodes)
        peer.settimeout(max(1.0, end - time.monotonic()))
        said = json.loads(_first_message(peer))
        if said["do"] == "refused":
            raise ConfigError.at(said["key"], said["message"])
        connection.name, connection.heard = said["names"][0], time.monotonic()
        return AgentGroup(self.node, [connection], World(said["master"], said["names"], local))

    def _incomplete(self, found: str) -> EnvironmentFault:
        return EnvironmentFault(
            f"the machines of the run did not find each other within {TIMEOUT:.0f} s",
            where=self.node.master,
            found=found,
            fix="does --master name the first machine, is the port open, and was the command started on every machine?",
            code="ERN-E022",
        )


def _listen(node: Node) -> socket.socket:
    try:
        return socket.create_server(("", node.port), backlog=1024)
    except OSError as error:
        fix = "choose another port in launcher.master (--master)"
        raise EnvironmentFault("the port is taken", where=node.master, found=str(error), fix=fix) from error


def _hello(peer: socket.socket, node: Node, local: int) -> Connection:
    """The first message of an agent; one that was started otherwise is refused."""
    peer.settimeout(5.0)
    try:
        said = json.loads(_first_message(peer))
        connection = Connection(int(said["node"]), str(said["name"]), peer)
        for key, theirs, ours in (
            ("launcher.nodes", said["nodes"], node.nodes),
            ("launcher.nproc", said["local"], local),
        ):
            if theirs != ours:
                connection.send(do="refused", key=key, message=f"{theirs} here, but {ours} on the first machine")
                raise ValueError("started otherwise")
    except BaseException:
        peer.close()
        raise
    return connection


def _first_message(peer: socket.socket) -> bytes:
    text = b""
    while not text.endswith(b"\n"):
        byte = peer.recv(1)
        if not byte or len(text) > 1 << 16:
            raise ValueError("no agent of this run")
        text += byte
    return text


def unique(names: Sequence[str]) -> list[str]:
    """Names of which several are the same get their number."""
    return [f"{name}-{i}" if names.count(name) > 1 else name for i, name in enumerate(names)]
