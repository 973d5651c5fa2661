"""How two agents begin a connection: each shows that it knows the secret before anything that the other one says is used. The
first machine attends to many such connections at once and waits for none of them. No paddle."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from erniecore_nodes.channel import FIRST_MOST, FIRST_TIMEOUT, Channel, Distrusted

#: connections that may be about to show what they know, and refusals that are told
_MOST_GUESTS, _MOST_TOLD = 64, 8
#: what a stranger, or a machine that was started otherwise, makes of a connection
FAULTS = (OSError, ValueError, KeyError, TypeError)


class Arrival(NamedTuple):
    """A connection whose other end knows the secret, where it came from, and its first message, which says who it is."""

    channel: Channel
    address: str
    hello: dict[str, Any]


@dataclass(eq=False)
class _Guest:
    """A connection that has shown nothing yet. ``end``: when it must have."""

    channel: Channel
    address: str
    end: float
    agreed: bool = False


class Handshakes:
    """The connections that are made to the first machine, until their other ends have shown that they know the secret.

    Args:
        listener: a listening socket; whoever made it closes it. tell: told who was refused.
    """

    def __init__(self, listener: socket.socket, secret: bytes, tell: Callable[[str], None]) -> None:
        self._listener, self._secret, self._tell = listener, secret, tell
        self._guests: list[_Guest] = []
        self._refusals = 0

    def look(self, wait: float = 0.0) -> Iterator[Arrival]:
        """Let connections in and hear them; those that are done with this. ``wait``: seconds for something to come."""
        waiting = [self._listener, *(guest.channel.socket for guest in self._guests)]
        select.select(waiting, [], [], wait)
        while select.select([self._listener], [], [], 0)[0]:
            self._accept()
        for guest in list(self._guests):
            arrival = self._attend(guest)
            if arrival is not None:
                yield arrival

    def refuse(self, channel: Channel, address: str, error: Exception, *, agreed: bool = True) -> None:
        """End a connection. Of those that are not trusted the first few are told, before their other end learns of it: who asks
        why it was refused finds the line. ``agreed``: it has its key."""
        if isinstance(error, Distrusted):
            self._refusals += 1
            if self._refusals <= _MOST_TOLD:
                self._tell(f"refused a connection from {address}: {error}")
            if agreed:  # in the clear, and nothing that a stranger would not know: what it has shown is wrong
                with suppress(OSError):
                    channel.socket.sendall(b'{"do": "distrusted"}\n')
        channel.close()

    def dismiss(self) -> None:
        """End all connections that have shown nothing."""
        for guest in self._guests:
            guest.channel.close()
        self._guests = []

    def _accept(self) -> None:
        with suppress(OSError):
            peer, address = self._listener.accept()
            if len(self._guests) >= _MOST_GUESTS:
                peer.close()
                return
            peer.settimeout(FIRST_TIMEOUT)
            channel = Channel(peer, first=True)
            channel.send(do="challenge", nonce=channel.nonce)
            self._guests.append(_Guest(channel, str(address[0]), time.monotonic() + FIRST_TIMEOUT))

    def _attend(self, guest: _Guest) -> Arrival | None:
        """Hear what a guest says."""
        channel = guest.channel
        try:
            while (line := channel.read(FIRST_MOST)) is not None:
                message = channel.unpack(line)
                if guest.agreed:
                    self._guests.remove(guest)
                    return Arrival(channel, guest.address, message)
                channel.agree(self._secret, message.get("nonce"))
                guest.agreed = True
            if time.monotonic() > guest.end:
                raise Distrusted(f"it said nothing within {FIRST_TIMEOUT:g} s")
        except FAULTS as error:
            self._guests.remove(guest)
            self.refuse(channel, guest.address, error, agreed=guest.agreed)
        return None


def introduce(peer: socket.socket, secret: bytes, end: float, **hello: Any) -> tuple[Channel, dict[str, Any]]:
    """The other side: show that this end knows the secret, say who this is; the connection and what is said to that.

    Args:
        end: of ``time.monotonic``, until when the first machine has to answer.
    Raises:
        Distrusted: the first machine does not know the secret. OSError: it is gone, or does not answer.
    """
    peer.settimeout(FIRST_TIMEOUT)
    channel = Channel(peer, first=False)
    nonce = channel.await_message(end).get("nonce")
    channel.send(do="answer", nonce=channel.nonce)
    channel.agree(secret, nonce)
    channel.send(do="hello", **hello)
    return channel, channel.await_message(end)
