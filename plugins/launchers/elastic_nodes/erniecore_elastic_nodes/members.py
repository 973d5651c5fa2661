"""Who takes part: the machines that have joined, as the first one sees them. A joining machine shows that it knows the secret
before anything that it says is used (``erniecore_nodes.channel``). No paddle.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from erniecore_nodes.agents import HEARTBEAT, heard
from erniecore_nodes.channel import FIRST_TIMEOUT, Channel, Distrusted
from erniecore_nodes.handshake import FAULTS, Arrival, Handshakes, introduce

from erniecore.api import EnvironmentFault
from erniecore.api.files import printable


@dataclass(eq=False)
class Member:
    """A machine that has joined.

    Attributes:
        number: in the order of joining; the first machine is 0. ranks: that it offers.
        ends: how its ranks of this start ended; None while they run. leaving: it was asked to end.
    """

    number: int
    name: str
    ranks: int
    channel: Channel
    ends: list[dict[str, Any]] | None = None
    leaving: bool = False

    @property
    def lost(self) -> str:
        """Why it is gone; empty while it is there."""
        return self.channel.lost

    def messages(self) -> list[dict[str, Any]]:
        """What has come since the last look; does not wait."""
        return heard(self.channel)


class Lobby:
    """Where machines join, before the run and while it goes on.

    Args:
        listener: a listening socket; the lobby closes it. secret: what all machines know. tell: told who was refused.

    Attributes:
        members: that are there, in the order of joining; those that are lost too, until :meth:`dismiss`.
    """

    def __init__(self, listener: socket.socket, secret: bytes, tell: Callable[[str], None]) -> None:
        self.members: list[Member] = []
        self._listener, self._handshakes = listener, Handshakes(listener, secret, tell)
        self._count, self._spoke = 0, 0.0

    def look(self) -> list[tuple[Member, dict[str, Any]]]:
        """Let machines in, tell all that this one is there, and hear what they say. Does not wait."""
        for arrival in self._handshakes.look():
            self._welcome(arrival)
        if time.monotonic() - self._spoke > HEARTBEAT:
            self._spoke = time.monotonic()
            self.tell_all(do="alive")
        return [(member, message) for member in self.members if not member.lost for message in member.messages()]

    def tell_all(self, **message: Any) -> None:
        """One message to every machine that is there."""
        for member in self.members:
            if not member.lost:
                member.channel.send(**message)

    def dismiss(self, member: Member) -> None:
        """It does not take part any more."""
        self.members.remove(member)
        member.channel.close()

    def close(self) -> None:
        """End all connections; what was sent arrives."""
        self._listener.close()
        self._handshakes.dismiss()
        for member in self.members:
            with suppress(OSError):
                member.channel.socket.shutdown(socket.SHUT_WR)
            member.channel.close()

    def _welcome(self, arrival: Arrival) -> None:
        """A machine that knows the secret becomes a member."""
        channel, hello = arrival.channel, arrival.hello
        try:
            ranks, name = int(hello["ranks"]), printable(str(hello["name"]))[:200]
            if hello["do"] != "hello" or ranks < 1:
                raise Distrusted("it offers no ranks")
        except FAULTS as error:
            self._handshakes.refuse(channel, arrival.address, error)
            return
        self._count += 1
        self.members.append(Member(self._count, name, ranks, channel))
        channel.send(do="welcome")


def join(address: tuple[str, int], secret: bytes, name: str, ranks: int, patience: float) -> Channel:
    """Join the run that the machine at ``address`` leads.

    Raises:
        EnvironmentFault: nobody is there, or it does not know the secret.
    """
    end, found, trusted = time.monotonic() + patience, "", True
    while time.monotonic() < end and trusted:
        try:
            peer = socket.create_connection(address, timeout=5.0)
        except OSError as error:
            found = str(error)
            time.sleep(0.5)
            continue
        try:
            channel, said = introduce(peer, secret, time.monotonic() + FIRST_TIMEOUT, name=name, ranks=ranks)
            if said["do"] != "welcome":
                raise Distrusted("no welcome")
            channel.heard = time.monotonic()
            return channel
        except Distrusted as error:
            trusted, found = False, str(error)
        except (OSError, KeyError) as error:
            found = str(error)
            time.sleep(0.5)
        peer.close()
    raise EnvironmentFault(
        "this machine could not join the run",
        where=f"{address[0]}:{address[1]}",
        found=found,
        fix="does launcher.master name the first machine, is the port open, and is the run going on there?"
        if trusted
        else "give every machine the same secret (launcher.secret_file)",
        code="ERN-E022",
    )
