"""Where the agents of a run on several nodes find each other, start after start. Each end shows that it knows the secret before
anything that the other one says is used. No paddle."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from erniecore.api import ConfigError, EnvironmentFault
from erniecore.api.files import printable
from erniecore.api.launcher import node_name
from erniecore_nodes.agents import AgentGroup, Connection, Node, World
from erniecore_nodes.channel import FIRST_MOST, FIRST_TIMEOUT, Channel, Distrusted

#: seconds that the agents have to find each other, also before a restart
TIMEOUT = 600.0
#: connections that may be about to show what they know, and refusals that are told
_MOST_GUESTS, _MOST_TOLD = 64, 8


@dataclass(eq=False)
class _Guest:
    """A connection that has shown nothing yet. ``end``: when it must have."""

    channel: Channel
    address: str
    end: float
    agreed: bool = False


class Rendezvous:
    """Where the agents find each other, start after start.

    Args:
        tell: told whom it waits for, and who was refused.
    """

    def __init__(self, node: Node, tell: Callable[[str], None]) -> None:
        self.node, self._tell = node, tell
        self.name = node_name()
        self._listener: socket.socket | None = None
        self._refusals = 0
        if node.nodes > 1 and not node.rank:
            self._listener = listen(node)

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
        guests: list[_Guest] = []
        end = time.monotonic() + TIMEOUT
        self._tell(f"waiting at {self.node.master} for {self.node.nodes - 1} more machine(s)")
        try:
            while len(connections) < self.node.nodes - 1:
                if time.monotonic() > end:
                    missing = [str(n) for n in range(1, self.node.nodes) if n not in connections]
                    raise self._incomplete(f"missing: machine {', '.join(missing)}")
                self._admit(guests)
                for guest in list(guests):
                    connection = self._attend(guest, guests, local)
                    if connection is not None:
                        if connection.node in connections:  # it has begun again
                            connections[connection.node].channel.close()
                        connections[connection.node] = connection
        except BaseException:
            for connection in connections.values():
                connection.channel.close()
            raise
        finally:
            for guest in guests:
                guest.channel.close()
        names = unique([self.name, *(connections[n].name for n in range(1, self.node.nodes))])
        world = World(f"{self.node.host}:{port}", names, local)
        for connection in connections.values():
            connection.name, connection.channel.heard = names[connection.node], time.monotonic()
            connection.send(do="start", master=world.master, names=names)
        return AgentGroup(self.node, list(connections.values()), world)

    def _admit(self, guests: list[_Guest]) -> None:
        """Wait a little for what comes, and challenge whoever is new."""
        assert self._listener is not None
        waiting = [self._listener, *(guest.channel.socket for guest in guests)]
        if self._listener not in select.select(waiting, [], [], 0.2)[0]:
            return
        with suppress(OSError):
            peer, address = self._listener.accept()
            if len(guests) >= _MOST_GUESTS:
                peer.close()
                return
            guest = _Guest(Channel(peer, first=True), str(address[0]), time.monotonic() + FIRST_TIMEOUT)
            peer.settimeout(FIRST_TIMEOUT)
            guest.channel.send(do="challenge", nonce=guest.channel.nonce)
            guests.append(guest)

    def _attend(self, guest: _Guest, guests: list[_Guest], local: int) -> Connection | None:
        """Hear what a guest says; the connection, once it has shown that it knows the secret."""
        channel = guest.channel
        try:
            while (line := channel.read(FIRST_MOST)) is not None:
                if not guest.agreed:
                    channel.agree(self.node.secret, channel.unpack(line).get("nonce"))
                    guest.agreed = True
                    continue
                guests.remove(guest)
                return self._hello(channel, channel.unpack(line), local)
            if time.monotonic() > guest.end:
                raise Distrusted(f"it said nothing within {FIRST_TIMEOUT:g} s")
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, Distrusted):
                self._refused(guest, error)
            if guest in guests:
                guests.remove(guest)
            channel.close()
        return None

    def _refused(self, guest: _Guest, error: Distrusted) -> None:
        if guest.agreed:  # in the clear, and nothing that a stranger would not know: what it has shown is wrong
            with suppress(OSError):
                guest.channel.socket.sendall(b'{"do": "distrusted"}\n')
        self._refusals += 1
        if self._refusals <= _MOST_TOLD:
            self._tell(f"refused a connection from {guest.address}: {error}")

    def _hello(self, channel: Channel, said: dict[str, object], local: int) -> Connection:
        """The first message of an agent; one that was started otherwise is refused."""
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
        peer.settimeout(FIRST_TIMEOUT)
        channel = Channel(peer, first=False)
        nonce = channel.await_message(end).get("nonce")
        channel.send(do="answer", nonce=channel.nonce)
        channel.agree(self.node.secret, nonce)
        channel.send(do="hello", node=self.node.rank, name=self.name, local=local, nodes=self.node.nodes)
        try:
            said = channel.await_message(end)
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
