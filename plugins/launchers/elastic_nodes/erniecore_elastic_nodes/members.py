"""Who takes part: the machines that have joined, as the first one sees them. A joining machine shows that it knows the secret
before anything that it says is used (``erniecore_nodes.channel``). No paddle.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from erniecore_nodes.agents import HEARTBEAT, SILENCE
from erniecore_nodes.channel import FIRST_MOST, FIRST_TIMEOUT, MOST, Channel, Distrusted

from erniecore.api import EnvironmentFault
from erniecore.api.files import printable

#: connections that may be about to show what they know, refusals that are told, messages of one machine that one look takes
_MOST_GUESTS, _MOST_TOLD, _AT_ONCE = 64, 8, 64


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


@dataclass(eq=False)
class _Guest:
    """A connection that has shown nothing yet. ``end``: when it must have."""

    channel: Channel
    address: str
    end: float
    agreed: bool = False


@dataclass(eq=False)
class Lobby:
    """Where machines join, before the run and while it goes on.

    Args:
        listener: a listening socket; the lobby closes it. secret: what all machines know. tell: told who was refused.

    Attributes:
        members: that are there, in the order of joining; those that are lost too, until :meth:`dismiss`.
    """

    listener: socket.socket
    secret: bytes
    tell: Callable[[str], None]
    members: list[Member] = field(default_factory=list)
    _guests: list[_Guest] = field(default_factory=list)
    _count: int = 0
    _refusals: int = 0
    _spoke: float = 0.0

    def look(self) -> list[tuple[Member, dict[str, Any]]]:
        """Let machines in, tell all that this one is there, and hear what they say. Does not wait."""
        while select.select([self.listener], [], [], 0)[0]:
            self._accept()
        for guest in list(self._guests):
            self._attend(guest)
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
        self.listener.close()
        for channel in (*(guest.channel for guest in self._guests), *(member.channel for member in self.members)):
            with suppress(OSError):
                channel.socket.shutdown(socket.SHUT_WR)
            channel.close()

    def _accept(self) -> None:
        with suppress(OSError):
            peer, address = self.listener.accept()
            if len(self._guests) >= _MOST_GUESTS:
                peer.close()
                return
            peer.settimeout(FIRST_TIMEOUT)
            channel = Channel(peer, first=True)
            channel.send(do="challenge", nonce=channel.nonce)
            self._guests.append(_Guest(channel, str(address[0]), time.monotonic() + FIRST_TIMEOUT))

    def _attend(self, guest: _Guest) -> None:
        """Hear what a guest says; a member, once it has shown that it knows the secret."""
        channel = guest.channel
        try:
            while (line := channel.read(FIRST_MOST)) is not None:
                message = channel.unpack(line)
                if not guest.agreed:
                    channel.agree(self.secret, message.get("nonce"))
                    guest.agreed = True
                    continue
                ranks = int(message["ranks"])
                if message["do"] != "hello" or ranks < 1:
                    raise Distrusted("it offers no ranks")
                self._guests.remove(guest)
                self._count += 1
                self.members.append(Member(self._count, printable(str(message["name"]))[:200], ranks, channel))
                channel.send(do="welcome")
                return
            if time.monotonic() < guest.end:
                return
            raise Distrusted(f"it said nothing within {FIRST_TIMEOUT:g} s")
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._refuse(guest, error)

    def _refuse(self, guest: _Guest, error: Exception) -> None:
        if guest.agreed:  # in the clear, and nothing that a stranger would not know
            with suppress(OSError):
                guest.channel.socket.sendall(b'{"do": "distrusted"}\n')
        self._guests.remove(guest)
        guest.channel.close()
        self._refusals += 1
        if self._refusals <= _MOST_TOLD:
            self.tell(f"refused a connection from {guest.address}: {error}")


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
            return _introduced(peer, secret, name, ranks)
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


def _introduced(peer: socket.socket, secret: bytes, name: str, ranks: int) -> Channel:
    peer.settimeout(FIRST_TIMEOUT)
    channel = Channel(peer, first=False)
    nonce = channel.await_message(time.monotonic() + FIRST_TIMEOUT).get("nonce")
    channel.send(do="answer", nonce=channel.nonce)
    channel.agree(secret, nonce)
    channel.send(do="hello", name=name, ranks=ranks)
    if channel.await_message(time.monotonic() + FIRST_TIMEOUT)["do"] != "welcome":
        raise Distrusted("no welcome")
    channel.heard = time.monotonic()
    return channel
