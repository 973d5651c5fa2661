"""Rounds, from the coordinator's side: who takes part, when a round closes, and what becomes of the anchor. No sockets here:
``server.py`` calls these methods for sites whose names TLS has proved.

A round closes when every expected site has sent its update, or once the time limit has passed and a quorum has. A site that
was not there in time is expected again as soon as it says something. No message of a site changes what others have sent.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from erniecore_wan.arrays import AnyArray, Vector
from erniecore_wan.deciding import plan_of
from erniecore_wan.fragments import vector_digest
from erniecore_wan.payload import Header, PayloadRefused, unpack, vector_of
from erniecore_wan.rounds import MODEL_KEYS, Member, Result, Terms, merge
from erniecore_wan.rules import clip_factors
from erniecore_wan.store import Store


@dataclass(frozen=True, slots=True)
class Life:
    """When rounds begin and close.

    Attributes:
        quorum: updates without which no round closes. limit: seconds after the first update of a round.
        start: sites that have joined before the first round closes.
    """

    quorum: int = 1
    limit: float = 600.0
    start: int = 1


@dataclass
class Status:
    """What is known of a site.

    Attributes:
        state: ``expected``, ``late``, ``left``. round: of its last update. samples: of all its updates.
        up, down: bytes. seen: clock. lag: seconds of its last update behind the first of the round.
        report: its last measurements.
    """

    state: str = "expected"
    round: int = -1
    samples: float = 0.0
    up: int = 0
    down: int = 0
    seen: float = 0.0
    lag: float = 0.0
    report: dict[str, float] = field(default_factory=dict)


class Coordinator:
    """The state of a run among sites. Every public method may be called by any thread."""

    def __init__(self, store: Store, life: Life, clock: Callable[[], float] = time.monotonic) -> None:
        self.store, self.life, self._clock = store, life, clock
        self.changed = threading.Condition(threading.RLock())
        self.terms: Terms | None = None
        self.round, self._first_at, self._waiting = 0, 0.0, False
        self.sites: dict[str, Status] = {}
        #: of each fragment: file names of its present anchor and the one before, and the anchor with its state
        self._files: list[list[str]] = []
        self._anchors: list[tuple[Vector, dict[str, AnyArray]]] = []
        self._first_loss = 0.0
        self._open: dict[str, tuple[Header, bytes]] = {}
        self._restore()

    def _restore(self) -> None:
        state = self.store.state()
        if state is None:
            return
        self.terms, self.round = Terms(state["terms"]), int(state["round"])
        self._files, self._first_loss = state["anchors"], float(state["first_loss"])
        self._anchors = [self.store.read_anchor(names[-1]) for names in self._files]
        self.sites = {name: Status(**values) for name, values in state["sites"].items()}
        for status in self.sites.values():
            status.seen = self._clock()
        for name, data in self.store.updates(self.round).items():
            self._open[name] = unpack(data)[0], data
        self._first_at = self._clock()
        self.store.emit("restarted", round=self.round, updates=sorted(self._open))

    # ---- sites
    def join(self, name: str, terms: Terms) -> dict[str, Any]:
        """A site takes part from now on. What it needs to know: the round, and the anchors (none: it brings the first one).

        Raises:
            PayloadRefused: ``wrong-model`` or ``wrong-settings``, with the key that differs.
        """
        with self.changed:
            if self.terms is None:
                self.terms = terms
                self.store.emit("agreed", site=name, terms=dict(terms.values), digest=terms.digest)
            elif differing := self.terms.differences(terms):
                key, (ours, theirs) = next(iter(differing.items()))
                kind = "wrong-model" if key in MODEL_KEYS else "wrong-settings"
                raise PayloadRefused(kind, f"{key} is {theirs!r}; the run has {ours!r}")
            status = self._seen(name)
            self.store.emit("joined", site=name, round=self.round, was=status.state)
            status.state = "expected"
            self.changed.notify_all()
            anchors = [{"file": names[-1], "digest": vector_digest(anchor)} for names, (anchor, _) in self._pairs()]
            return {"round": self.round, "anchors": anchors, "first": self._bringer() == name and not anchors}

    def _pairs(self) -> list[tuple[list[str], tuple[Vector, dict[str, AnyArray]]]]:
        return list(zip(self._files, self._anchors, strict=True))

    def _bringer(self) -> str:
        """The site that is to bring the first anchor: of those that have joined, the first by name that is still there."""
        return min((name for name, status in self.sites.items() if status.state == "expected"), default="")

    def leave(self, name: str) -> None:
        """A site is done; nobody waits for it."""
        with self.changed:
            self._seen(name).state = "left"
            self.store.emit("left", site=name, round=self.round)
            self.advance()

    def put_anchor(self, name: str, vectors: list[Vector]) -> None:
        """The weights that the run starts from, from the first site; of others that come later they are not taken."""
        with self.changed:
            if self._anchors:
                return
            self._anchors = [(vector, {}) for vector in vectors]
            self._files = [[self.store.write_anchor(i, 0, vector, {})] for i, vector in enumerate(vectors)]
            self._commit()
            self.store.emit("anchor", site=name, digests=[vector_digest(vector) for vector in vectors])
            self.changed.notify_all()

    def submit(self, name: str, round_: int, data: bytes) -> str:
        """A site's update; ``accepted``, or ``known`` if it is the same as before.

        Raises:
            PayloadRefused: ``damaged``, ``stranger``, ``wrong-model``, ``replayed`` or ``late``.
        """
        header, body = unpack(data)
        with self.changed:
            self._check(name, round_, header)
            status = self._seen(name)
            if round_ < self.round:
                return self._again(name, round_, data)
            status.state = "expected"
            if name in self._open:
                if self._open[name][1] != data:
                    raise PayloadRefused("replayed", f"round {round_} has another update of {name} already")
                return "known"
            vector_of(header, body)  # what cannot be read is refused now, not when the round closes
            self.store.put_update(round_, name, data)
            self._first_at = self._first_at if self._open else self._clock()
            self._open[name] = header, data
            status.round, status.samples, status.up = round_, status.samples + header.samples, status.up + len(data)
            status.lag, status.report = self._clock() - self._first_at, dict(header.report)
            self.store.emit("update", site=name, round=round_, bytes=len(data), lag=status.lag, samples=header.samples)
            self.advance()
            return "accepted"

    def _check(self, name: str, round_: int, header: Header) -> None:
        if self.terms is None or not self._anchors:
            raise PayloadRefused("stranger", "there is no run yet; join first")
        if name not in self.sites:
            raise PayloadRefused("stranger", f"{name} has not joined")
        if header.sender != name:
            raise PayloadRefused("replayed", f"an update of {header.sender}, sent by {name}")
        if header.model != self.terms.digest:
            raise PayloadRefused("wrong-model", "the update is of another model or other settings")
        fragment = header.round % len(self.terms.sizes)
        if header.fragment != fragment or header.size != self.terms.sizes[fragment]:
            raise PayloadRefused("wrong-model", f"fragment {header.fragment} with {header.size} elements")
        if header.round != round_ or round_ > self.round:
            raise PayloadRefused(
                "replayed", f"an update of round {header.round} for round {round_}; it is {self.round}"
            )

    def _again(self, name: str, round_: int, data: bytes) -> str:
        """An update of a closed round: known, if it is the one that counted."""
        result = self.store.result(round_)
        member = None if result is None else result.member(name)
        if member is None:
            raise PayloadRefused("late", f"round {round_} was closed without {name}; it is {self.round}")
        if member.digest != hashlib.sha256(data).hexdigest():
            raise PayloadRefused("replayed", f"round {round_} was closed with another update of {name}")
        return "known"

    def _seen(self, name: str) -> Status:
        status = self.sites.setdefault(name, Status())
        status.seen = self._clock()
        return status

    def count(self, name: str, down: int) -> None:
        """Bytes that a site has fetched."""
        with self.changed:
            self._seen(name).down += down

    # ---- rounds
    def advance(self) -> None:
        """Close the round if it is time; called after every change, and regularly."""
        with self.changed:
            expected = {name for name, status in self.sites.items() if status.state == "expected"}
            absent = sorted(expected - self._open.keys())
            if not self._open or len(self.sites) < self.life.start or (absent and not self._overdue()):
                return
            if len(self._open) < self.life.quorum:
                if not self._waiting and self._overdue():
                    self.store.emit(
                        "waiting", round=self.round, have=len(self._open), quorum=self.life.quorum, absent=absent
                    )
                    self._waiting = True
                return
            self._close(absent)

    def _overdue(self) -> bool:
        return self._clock() - self._first_at >= self.life.limit

    def _close(self, absent: list[str]) -> None:
        assert self.terms is not None
        names = sorted(self._open)
        fragment = self.round % len(self.terms.sizes)
        updates = [vector_of(*unpack(self._open[name][1])) for name in names]
        factors = clip_factors([self._open[name][0].norm for name in names], float(self.terms.values["clip"]))
        members = tuple(
            Member(name, self._open[name][0].samples, factor, _digest(self._open[name][1]), len(self._open[name][1]))
            for name, factor in zip(names, factors, strict=True)
        )
        anchor, state = merge(self.terms.outer, *self._anchors[fragment], updates, members)
        reason = f"quorum {self.life.quorum} after {self.life.limit:g} s" if absent else "all sites"
        missing = dict.fromkeys(absent, f"no update within {self.life.limit:g} s of the first one")
        reports = {name: self._open[name][0].report for name in names}
        losses = [report["loss"] for report in reports.values() if "loss" in report]
        self._first_loss = self._first_loss or (sum(losses) / len(losses) if losses else 0.0)
        plan = plan_of(self.terms, reports, self._first_loss)
        result = Result(self.round, fragment, members, missing, reason, vector_digest(anchor), plan)
        for name in absent:
            self.sites[name].state = "late"
        self.store.put_result(result)
        self._anchors[fragment] = anchor, state
        file = self.store.write_anchor(fragment, self.round + 1, anchor, state)
        self._files[fragment] = [*self._files[fragment], file][-2:]
        self.round, self._open, self._waiting = self.round + 1, {}, False
        self._commit()
        clipped = {member.name: member.factor for member in members if member.factor < 1}
        self.store.emit("closed", **_facts(result), clipped=clipped, anchor=result.anchor, plan=plan)
        self.changed.notify_all()

    def _commit(self) -> None:
        assert self.terms is not None
        sites = {name: asdict(status) for name, status in self.sites.items()}
        self.store.commit(
            {
                "terms": self.terms.values,
                "round": self.round,
                "anchors": self._files,
                "first_loss": self._first_loss,
                "sites": sites,
            }
        )

    def wait_result(self, round_: int, seconds: float) -> Result | None:
        """A round's result, once it is closed; ``None`` after so many seconds. Raises ``PayloadRefused`` (``late``) for a round
        of which nothing is kept any more."""
        with self.changed:
            self.changed.wait_for(lambda: self.round > round_, seconds)
            if self.round <= round_:
                return None
            found = self.store.result(round_)
            if found is None:
                raise PayloadRefused("late", f"round {round_} is long closed; it is {self.round}")
            return found

    def wait_anchor(self, seconds: float) -> bool:
        """Whether there are anchors, after at most so many seconds."""
        with self.changed:
            return self.changed.wait_for(lambda: bool(self._anchors), seconds)

    @property
    def done(self) -> bool:
        """Whether sites have been here and all have left."""
        with self.changed:
            return bool(self.sites) and all(status.state == "left" for status in self.sites.values())

    def status(self) -> dict[str, Any]:
        """Round, sites, bytes and lag."""
        with self.changed:
            now = self._clock()
            rows = [{"name": name, **asdict(one), "seen": now - one.seen} for name, one in sorted(self.sites.items())]
            terms = None if self.terms is None else dict(self.terms.values)
            return {
                "round": self.round,
                "updates": sorted(self._open),
                "sites": rows,
                **asdict(self.life),
                "terms": terms,
            }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _facts(result: Result) -> Mapping[str, Any]:
    """Of the event of a closed round."""
    members = {member.name: member.samples for member in result.members}
    size = sum(member.num_bytes for member in result.members)
    return {
        "round": result.round,
        "fragment": result.fragment,
        "members": members,
        "missing": dict(result.missing),
        "reason": result.reason,
        "bytes": size,
    }
