"""An exchange in a thread of its own: send an update, wait until its round is closed, fetch the updates of the others."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from erniecore.api import EnvironmentFault
from erniecore_wan.memory import Sent
from erniecore_wan.payload import PayloadRefused

if TYPE_CHECKING:
    from erniecore_wan.client import CoordinatorClient
    from erniecore_wan.rounds import Result

#: why an update does not count, and the site goes on all the same
_LATE, _OTHER = "late", "replayed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has come of an update.

    Attributes:
        result: of the round; ``None``: it was closed without this site, ``reason`` says how.
        updates: of its members, in their order. own: whether the update that counted is the one that was sent.
    """

    result: Result | None
    updates: tuple[bytes, ...] = ()
    own: bool = True
    reason: str = ""


class Transfer:
    """One exchange; begins when it is made. No other thread uses the client until :meth:`poll` has an outcome."""

    def __init__(self, client: CoordinatorClient, sent: Sent, name: str) -> None:
        self._client, self._sent, self._name = client, sent, name
        self._outcome: Outcome | None = None
        self._error: Exception | None = None
        self._stopped = False
        self._over = threading.Event()
        threading.Thread(target=self._work, name="wan exchange", daemon=True).start()

    def poll(self, seconds: float) -> Outcome | None:
        """The outcome; ``None`` while it is on its way, after so many seconds.

        Raises:
            EnvironmentFault: the coordinator refuses the update for good, or was not reached for too long.
        """
        self._over.wait(seconds)
        if self._error is not None:
            raise self._error
        return self._outcome

    def stop(self) -> None:
        """Nobody waits any more."""
        self._stopped = True

    def _work(self) -> None:
        try:
            self._outcome = self._send_and_wait()
        except PayloadRefused as error:
            self._error = EnvironmentFault(
                f"the coordinator refuses this site's update: {error.kind}",
                where=f"round {self._sent.round}",
                found=str(error),
                fix="`ernie wan status` shows what the coordinator knows of its sites",
            )
        except Exception as error:
            self._error = error
        finally:
            self._over.set()

    def _send_and_wait(self) -> Outcome | None:
        number = self._sent.round
        try:
            self._client.submit(number, self._sent.data)
        except PayloadRefused as error:
            if error.kind == _LATE:
                return Outcome(None, reason=str(error))
            if error.kind != _OTHER:
                raise
        found = None
        while found is None:
            if self._stopped:
                return None
            try:
                found = self._client.result(number)
            except PayloadRefused as error:
                return Outcome(None, reason=str(error))
        member = found.member(self._name)
        if member is None:
            return Outcome(None, reason=f"round {number} was closed without {self._name}")
        own = member.digest == hashlib.sha256(self._sent.data).hexdigest()
        updates = (
            self._sent.data if own and one.name == self._name else self._client.update_of(number, one.name)
            for one in found.members
        )
        try:
            return Outcome(found, tuple(updates), own)
        except PayloadRefused as error:
            return Outcome(None, reason=str(error))
