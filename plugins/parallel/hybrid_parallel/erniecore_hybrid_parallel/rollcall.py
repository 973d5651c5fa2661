"""Before a collective of a backend whose patience is short (gloo gives up after 30 s), the ranks of a group tell each other
that they have come: one byte to each of the others, about 15 µs on one machine. Whoever is slow is waited for as long as
``parallel.timeout`` says and named afterwards; whoever is gone, or whose network is, is named at once; and ranks that are
about to do different things say so instead of waiting for each other. No tensors here.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from erniecore.api import EnvironmentFault

#: seconds of a silent network after which it is taken for broken: first probe, between probes, probes
KEEPALIVE = (5, 3, 5)
#: what ranks do together, by the byte that they send
DOINGS = ("", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "hand over")


@dataclass(frozen=True)
class Door:
    """Where a rank can be reached, and the machine that it runs on."""

    host: str
    port: int
    node: str

    def to_json(self) -> str:
        """As text for the others."""
        return json.dumps([self.host, self.port, self.node])


class Doors:
    """This rank's listener and everybody's address.

    Args:
        host: this machine's address as the others see it. node: its name. timeout: seconds that others may take.

    Attributes:
        of: by rank. alarm: called before a rank is given up as too late.
    """

    def __init__(self, rank: int, host: str, node: str, timeout: float) -> None:
        self.rank, self.timeout = rank, timeout
        self._listener = socket.create_server(("", 0), backlog=1024)
        self.own = Door(host, self._listener.getsockname()[1], node)
        self.of: list[Door] = []
        self.alarm: Callable[[], None] = lambda: None
        self._early: dict[tuple[str, int], socket.socket] = {}

    def name(self, rank: int) -> str:
        """A rank with its machine, where there are several."""
        several = len({door.node for door in self.of}) > 1
        return f"rank {rank} on {self.of[rank].node}" if several else f"rank {rank}"

    def group(self, ranks: Sequence[int], purpose: str = "") -> RollCall:
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
        return RollCall(self, peers)

    def _connect(self, other: int, key: str) -> socket.socket:
        door = self.of[other]
        try:
            peer = socket.create_connection((door.host, door.port), timeout=self.timeout)
        except OSError as error:
            raise self._unmet(other, str(error)) from error
        peer.sendall(f"{key} {self.rank}\n".encode())
        return peer

    def _accept(self, key: str, other: int) -> socket.socket:
        end = time.monotonic() + self.timeout
        while (key, other) not in self._early:
            self._listener.settimeout(max(0.01, end - time.monotonic()))
            try:
                peer, _ = self._listener.accept()
                peer.settimeout(self.timeout)
                found, _, rank = _line(peer).rpartition(" ")
                self._early[found, int(rank)] = peer
            except (OSError, ValueError) as error:
                if time.monotonic() < end and not isinstance(error, TimeoutError):
                    continue  # a stranger
                raise self._unmet(other, "it did not connect") from error
        return self._early.pop((key, other))

    def _unmet(self, other: int, found: str) -> EnvironmentFault:
        fix = "does a firewall keep the machines of the run apart?"
        where = f"rank {self.rank}, connecting to {self.name(other)}"
        message = "the processes of the run did not find each other"
        return EnvironmentFault(message, where=where, found=found, fix=fix, code="ERN-E022")


@dataclass(eq=False)
class RollCall:
    """The others of one group.

    Attributes:
        doors: names of ranks. peers: rank -> connection. waiting: what is being waited for, and for whom.
    """

    doors: Doors
    peers: Mapping[int, socket.socket]
    waiting: tuple[str, int] | None = field(default=None, init=False)

    def __call__(self, doing: str) -> None:
        """Wait until every member is about to do the same.

        Raises:
            EnvironmentFault: one is gone, or did not come within the timeout, or does something else.
        """
        mark = bytes([DOINGS.index(doing)])
        for rank, peer in self.peers.items():
            try:
                peer.sendall(mark)
            except OSError as error:
                self._lost(rank, doing, error)
        for rank, peer in self.peers.items():
            self.waiting = doing, rank
            try:
                found = peer.recv(1)
            except OSError as error:
                self._lost(rank, doing, error)
            if found != mark:
                self._other(rank, doing, found)
        self.waiting = None

    def _lost(self, rank: int, doing: str, error: OSError) -> NoReturn:
        name, late = self.doors.name(rank), type(error) is TimeoutError and not error.errno
        if late:
            self.doors.alarm()
            message = f"waited {self.doors.timeout:g} s for {name}"
            fix = "look at its log and its stacks in logs/; parallel.timeout sets the patience"
        else:
            broken = isinstance(error, ConnectionResetError | BrokenPipeError)
            message = f"{name} has ended" if broken else f"the network to {name} does not answer"
            fix = (
                "look at the log of the rank that ended first" if broken else "look at the network and at that machine"
            )
        raise EnvironmentFault(message, where=doing, found=str(error), fix=fix, code="ERN-E021") from error

    def _other(self, rank: int, doing: str, found: bytes) -> NoReturn:
        if not found:
            self._lost(rank, doing, ConnectionResetError("connection closed"))
        other = DOINGS[found[0]] if found[0] < len(DOINGS) else "something else"
        raise EnvironmentFault(
            f"{self.doors.name(rank)} does {other} where this one does {doing}",
            where=f"rank {self.doors.rank}",
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


def _line(peer: socket.socket) -> str:
    """One line of a peer that says who it is."""
    text = b""
    while not text.endswith(b"\n"):
        byte = peer.recv(1)
        if not byte or len(text) > 1 << 16:
            raise ValueError("no rank of this run")
        text += byte
    return text.decode().strip()
