"""A monitored barrier before each collective, for backends with a short fixed timeout (gloo: 30 s). Each rank sends one byte to
every other rank of the group, about 15 µs on one machine. A slow rank is waited for up to ``parallel.timeout`` and then named;
a rank that has ended, or whose network is down, is named at once; ranks that start different collectives get an error instead
of a deadlock.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from erniecore.api import EnvironmentFault

#: TCP keep-alive: seconds before the first probe, seconds between probes, number of probes
KEEPALIVE = (5, 3, 5)
#: seconds in which a connection has to say whose it is
_FIRST_TIMEOUT = 20.0
#: collectives by the byte that ranks send
COLLECTIVES = ("", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "hand over")


@dataclass(frozen=True)
class Address:
    """Host, port and node name of a rank, and the word by which it knows that a connection is another rank's."""

    host: str
    port: int
    node: str
    token: str = field(default="", repr=False)

    def to_json(self) -> str:
        """As JSON, to send to the other ranks."""
        return json.dumps([self.host, self.port, self.node, self.token])


class Listener:
    """The listening socket of this rank and the addresses of all ranks.

    Args:
        host: address of this node, reachable from the others. node: its name. timeout: seconds to wait for other ranks.

    Attributes:
        of: address by rank. alarm: called before a wait times out.
    """

    def __init__(self, rank: int, host: str, node: str, timeout: float) -> None:
        self.rank, self.timeout = rank, timeout
        self._listener = socket.create_server((host, 0), backlog=1024)
        self.own = Address(host, self._listener.getsockname()[1], node, secrets.token_hex(16))
        self.of: list[Address] = []
        self.alarm: Callable[[], None] = lambda: None
        self._early: dict[tuple[str, int], socket.socket] = {}

    def name(self, rank: int) -> str:
        """A rank's number, with its node if there are several."""
        several = len({address.node for address in self.of}) > 1
        return f"rank {rank} on {self.of[rank].node}" if several else f"rank {rank}"

    def group(self, ranks: Sequence[int], purpose: str = "") -> MonitoredBarrier:
        """Connect the members of a group; all of them call this, for their groups in the same order."""
        key, peers = f"{purpose}/{','.join(map(str, ranks))}", {}
        for other in ranks:
            if other < self.rank:
                peers[other] = self._connect(other, key)
        for other in ranks:
            if other > self.rank:
                peers[other] = self._accept(key, other)
        for peer in peers.values():
            _configure(peer, self.timeout)
        return MonitoredBarrier(self, peers)

    def _connect(self, other: int, key: str) -> socket.socket:
        address = self.of[other]
        try:
            peer = socket.create_connection((address.host, address.port), timeout=self.timeout)
        except OSError as error:
            raise self._unmet(other, str(error)) from error
        peer.sendall(f"{address.token} {key} {self.rank}\n".encode())
        return peer

    def _accept(self, key: str, other: int) -> socket.socket:
        end = time.monotonic() + self.timeout
        while (key, other) not in self._early:
            self._listener.settimeout(max(0.01, end - time.monotonic()))
            try:
                peer, _ = self._listener.accept()
            except OSError as error:
                if time.monotonic() < end and not isinstance(error, TimeoutError):
                    continue
                raise self._unmet(other, "it did not connect") from error
            try:
                self._greet(peer)
            except (OSError, ValueError):
                peer.close()  # a stranger
        return self._early.pop((key, other))

    def _greet(self, peer: socket.socket) -> None:
        """Note whose connection this is. Raises ``OSError`` or ``ValueError`` for one that is no rank's of this run."""
        token, _, rest = _line(peer, time.monotonic() + _FIRST_TIMEOUT).partition(" ")
        found, _, rank = rest.rpartition(" ")
        if not hmac.compare_digest(token.encode(), self.own.token.encode()):
            raise ValueError("no rank of this run")
        self._early[found, int(rank)] = peer

    def _unmet(self, other: int, found: str) -> EnvironmentFault:
        fix = "does a firewall keep the machines of the run apart?"
        where = f"rank {self.rank}, connecting to {self.name(other)}"
        message = "the processes of the run did not find each other"
        return EnvironmentFault(message, where=where, found=found, fix=fix, code="ERN-E022")


@dataclass(eq=False)
class MonitoredBarrier:
    """Connections of this rank to the other members of a group.

    Attributes:
        listener: names of ranks. peers: rank -> connection. waiting: the collective and the rank that is waited for.
    """

    listener: Listener
    peers: Mapping[int, socket.socket]
    waiting: tuple[str, int] | None = field(default=None, init=False)

    def __call__(self, collective: str) -> None:
        """Wait until every member is about to start the same collective.

        Raises:
            EnvironmentFault: a member has ended, did not arrive within the timeout, or starts another collective.
        """
        mark = bytes([COLLECTIVES.index(collective)])
        for rank, peer in self.peers.items():
            try:
                peer.sendall(mark)
            except OSError as error:
                self._lost(rank, collective, error)
        for rank, peer in self.peers.items():
            self.waiting = collective, rank
            try:
                found = peer.recv(1)
            except OSError as error:
                self._lost(rank, collective, error)
            if found != mark:
                self._other(rank, collective, found)
        self.waiting = None

    def _lost(self, rank: int, collective: str, error: OSError) -> NoReturn:
        name, late = self.listener.name(rank), type(error) is TimeoutError and not error.errno
        if late:
            self.listener.alarm()
            message = f"waited {self.listener.timeout:g} s for {name}"
            fix = "look at its log and its stacks in logs/; parallel.timeout sets the patience"
        else:
            broken = isinstance(error, ConnectionResetError | BrokenPipeError)
            message = f"{name} has ended" if broken else f"the network to {name} does not answer"
            fix = (
                "look at the log of the rank that ended first" if broken else "look at the network and at that machine"
            )
        raise EnvironmentFault(message, where=collective, found=str(error), fix=fix, code="ERN-E021") from error

    def _other(self, rank: int, collective: str, found: bytes) -> NoReturn:
        if not found:
            self._lost(rank, collective, ConnectionResetError("connection closed"))
        other = COLLECTIVES[found[0]] if found[0] < len(COLLECTIVES) else "something else"
        raise EnvironmentFault(
            f"{self.listener.name(rank)} does {other} where this one does {collective}",
            where=f"rank {self.listener.rank}",
            fix="a bug in a plugin: the ranks of a group must do the same in the same order",
            code="ERN-E021",
        )


def _configure(peer: socket.socket, timeout: float) -> None:
    peer.settimeout(timeout)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle, between, count = KEEPALIVE
    for name, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", between), ("TCP_KEEPCNT", count)):
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # the same patience where something was sent and not received
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (idle + between * count))


def _line(peer: socket.socket, end: float) -> str:
    """The first line that a peer sends: token, group and rank. All of it has to come before ``end``."""
    text = b""
    while not text.endswith(b"\n"):
        peer.settimeout(max(0.001, end - time.monotonic()))
        byte = peer.recv(1)
        if not byte or len(text) > 1 << 16 or time.monotonic() > end:
            raise ValueError("no rank of this run")
        text += byte
    return text.decode().strip()
