"""An exchange in a thread of its own: send an update, wait until its round is closed, fetch the updates of the others."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from erniecore.api import ConfigError, EnvironmentFault
from erniecore_wan.masks import masked_update
from erniecore_wan.memory import Sent
from erniecore_wan.payload import PayloadRefused, pack, unpack, vector_of

if TYPE_CHECKING:
    from erniecore_wan.client import CoordinatorClient
    from erniecore_wan.masks import Roster
    from erniecore_wan.rounds import Result

#: why an update does not count, and the site goes on all the same: too late, another one counted, masked for another roster
_LATE, _OTHER, _REPEAT = "late", "replayed", "repeat"
#: seconds between two questions whether enough sites are there for a masked round
_LOOK = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has come of an update.

    Attributes:
        result: of the round; ``None``: it was closed without this site, ``reason`` says how.
        updates: of its members, in their order; of a masked round the sum alone.
        own: whether the update that counted is the one that was sent.
    """

    result: Result | None
    updates: tuple[bytes, ...] = ()
    own: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Masker:
    """Makes what a site sends in a masked round. ``secrets``: name of another site -> what only the two know."""

    own: str
    secrets: Mapping[str, bytes]

    def masked(self, plain: bytes, roster: Roster) -> bytes:
        """The update that travels, of one in the form ``float32``.

        Raises:
            ConfigError: a site of the roster whose certificate this site does not have, or a value beyond fixed point.
        """
        strangers = [name for name in roster.members if name != self.own and name not in self.secrets]
        if strangers:
            raise ConfigError.at("parallel.peers", f"there is no certificate of {', '.join(strangers)}")
        header, body = unpack(plain)
        try:
            words = masked_update(vector_of(header, body), header.samples, self.own, self.secrets, header.round, roster)
        except ValueError as error:
            raise ConfigError.at("parallel.secure", f"round {header.round}: {error}") from None
        return pack(replace(header, form="masked", attempt=roster.attempt), words.astype("<u4").tobytes())


class Transfer:
    """One exchange; begins when it is made. No other thread uses the client until :meth:`poll` has an outcome.

    Args:
        sent: what to send; plain also where it is masked. masker: of a run whose updates are masked.
    """

    def __init__(self, client: CoordinatorClient, sent: Sent, name: str, masker: Masker | None = None) -> None:
        self._client, self._sent, self._name, self._masker = client, sent, name, masker
        self._data, self._attempt = b"", -1
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
        number, found = self._sent.round, None
        while found is None:
            if self._stopped:
                return None
            try:
                if self._prepared():
                    self._submit()
            except PayloadRefused as error:
                if error.kind != _LATE:
                    raise
                return Outcome(None, reason=str(error))
            if self._attempt < 0:
                time.sleep(_LOOK)
                continue
            try:
                found = self._client.result(number, attempt=self._attempt)
            except PayloadRefused as error:
                return Outcome(None, reason=str(error))
        return self._outcome_of(found)

    def _prepared(self) -> bool:
        """Whether there is something to send that was not sent yet: the update, or the same one masked for another roster."""
        if self._masker is None:
            self._data, before, self._attempt = self._sent.data, self._attempt, 0
            return before < 0
        roster = self._client.roster(self._sent.round, unpack(self._sent.data)[0].samples)
        if roster is None or roster.attempt == self._attempt:
            return False
        self._data, self._attempt = self._masker.masked(self._sent.data, roster), roster.attempt
        return True

    def _submit(self) -> None:
        try:
            self._client.submit(self._sent.round, self._data)
        except PayloadRefused as error:
            if error.kind not in (_OTHER, _REPEAT):
                raise

    def _outcome_of(self, found: Result) -> Outcome:
        member = found.member(self._name)
        if member is None:
            return Outcome(None, reason=f"round {found.round} was closed without {self._name}")
        own = member.digest == hashlib.sha256(self._data).hexdigest()
        try:
            if self._masker is not None:
                return Outcome(found, (self._client.sum_of(found.round),), own)
            updates = (
                self._data if own and one.name == self._name else self._client.update_of(found.round, one.name)
                for one in found.members
            )
            return Outcome(found, tuple(updates), own)
        except PayloadRefused as error:
            return Outcome(None, reason=str(error))
