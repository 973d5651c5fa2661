"""Rounds, from the coordinator's side: who takes part, when a round closes, and what becomes of the anchor. No sockets here:
``server.py`` calls these methods for sites whose names TLS has proved.

A round closes when every expected site has sent its update, or once the time limit has passed and a quorum has. A site that
was not there in time is expected again as soon as it says something. No message of a site changes what others have sent.

Where updates are masked, a round has a roster, which is fixed before the first update: only the updates of all its members
have a sum. If one is missing when the limit has passed, the others repeat the round among themselves (``attempt``).
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from erniecore_wan.arrays import AnyArray, Vector
from erniecore_wan.deciding import plan_of
from erniecore_wan.fragments import vector_digest
from erniecore_wan.masks import Roster, roster_from, total
from erniecore_wan.payload import Header, PayloadRefused, checked_vector, unpack, vector_of, words_of
from erniecore_wan.rounds import MODEL_KEYS, Member, Result, Terms, merge, merge_sum
from erniecore_wan.rules import clip_factors
from erniecore_wan.sites import Life, Status
from erniecore_wan.store import Store


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
        self._roster: Roster | None = None
        self._asked: dict[str, float] = {}
        self._restore()

    def _restore(self) -> None:
        state = self.store.state()
        if state is None:
            return
        try:
            self.terms, self.round = Terms(state["terms"]).checked(), int(state["round"])
            self._files, self._first_loss = [list(names) for names in state["anchors"]], float(state["first_loss"])
            self.sites = {str(name): Status(**values) for name, values in state["sites"].items()}
            self._anchors = [self.store.read_anchor(names[-1]) for names in self._files]
            if found := state.get("roster"):
                self._roster = roster_from(found)
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
            raise self.store.damaged(f"{type(error).__name__}: {error}") from error
        for status in self.sites.values():
            status.seen = self._clock()
        for name, data in self.store.updates(self.round).items():
            header = unpack(data)[0]
            if self._roster is None or header.attempt == self._roster.attempt:
                self._open[name] = header, data
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
            self._asked.pop(name, None)
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
            if not self.terms_agreed.secure:
                checked_vector(header, body)  # what cannot be read is refused now, not when the round closes
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
        if self.terms.secure != (header.form == "masked"):
            raise PayloadRefused("wrong-settings", f"an update in the form {header.form}; secure={self.terms.secure}")
        if self.terms.secure and round_ == self.round:
            self._check_roster(name, header.attempt)

    def _check_roster(self, name: str, attempt: int) -> None:
        roster = self._roster
        if roster is None or attempt != roster.attempt:
            raise PayloadRefused("repeat", f"attempt {attempt} of round {self.round}: ask for its roster")
        if name not in roster.members:
            raise PayloadRefused("late", f"round {self.round} is among {', '.join(roster.members)}")

    def _again(self, name: str, round_: int, data: bytes) -> str:
        """An update of a closed round: known, if it is the one that counted."""
        result = self.store.result(round_)
        member = None if result is None else result.member(name)
        if member is None:
            raise PayloadRefused("late", f"round {round_} was closed without {name}; it is {self.round}")
        if member.digest != hashlib.sha256(data).hexdigest():
            raise PayloadRefused("replayed", f"round {round_} was closed with another update of {name}")
        return "known"

    def roster(self, name: str, round_: int, samples: float) -> Roster | None:
        """Who takes part in a round whose updates are masked; ``None`` until all sites have asked, or the limit has passed since
        the first one did and a quorum has.

        Args:
            samples: weight of the update of ``name``.

        Raises:
            PayloadRefused: ``late``: the round goes on, or went on, without this site. ``alone``: all others are done, and
                what a site sends alone is not hidden.
        """
        with self.changed:
            if self.terms is None or not self.terms.secure:
                raise PayloadRefused("wrong-settings", "updates of this run are not masked")
            status = self._seen(name)
            if round_ < self.round:
                result = self.store.result(round_)
                if result is None or result.member(name) is None:
                    raise PayloadRefused("late", f"round {round_} was closed without {name}; it is {self.round}")
                return result.roster
            if self._roster is None:
                status.state = "expected"
                self._first_at = self._first_at if self._asked else self._clock()
                self._asked[name] = samples
                self._gather(name)
            if self._roster is not None and name not in self._roster.members:
                raise PayloadRefused("late", f"round {round_} is among {', '.join(self._roster.members)}")
            return self._roster

    def _gather(self, name: str) -> None:
        """Fix the roster, if it is time. ``name`` asks."""
        expected, asked = self._expected(), self._asked
        if len(self.sites) > 1 and all(one.state == "left" for other, one in self.sites.items() if other != name):
            raise PayloadRefused("alone", "all other sites are done, and an update alone would not be hidden")
        missing = [other for other in expected if other not in asked]
        if (
            len(self.sites) < self.life.start
            or len(asked) < max(self.life.quorum, 2)
            or (missing and not self._overdue())
        ):
            return
        for other in missing:
            self.sites[other].state = "late"
        self._fix_roster(Roster(0, tuple(sorted(asked)), max(asked.values())), missing)

    def _fix_roster(self, roster: Roster, missing: list[str]) -> None:
        self._roster = roster
        self._commit()
        self.store.emit("roster", round=self.round, missing=missing, **asdict(roster))
        self.changed.notify_all()

    def _expected(self) -> list[str]:
        """Sites whose updates are waited for, sorted."""
        return sorted(name for name, status in self.sites.items() if status.state == "expected")

    @property
    def terms_agreed(self) -> Terms:
        """What all sites have in common; only once a site has joined."""
        assert self.terms is not None
        return self.terms

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
            waited_for = self._expected() if self._roster is None else self._roster.members
            absent = sorted(set(waited_for) - self._open.keys())
            gone = all(self.sites[name].state == "left" for name in absent)
            if not self._open or len(self.sites) < self.life.start or not (gone or self._overdue()):
                return
            if len(self._open) < max(self.life.quorum, 1 if self._roster is None else 2):
                if not self._waiting and self._overdue():
                    self.store.emit(
                        "waiting", round=self.round, have=len(self._open), quorum=self.life.quorum, absent=absent
                    )
                    self._waiting = True
                return
            if self._roster is not None and absent:
                self._repeat(absent)
            else:
                self._close(absent)

    def _repeat(self, absent: list[str]) -> None:
        """The masks of who is missing do not cancel: the others send their updates again, masked among themselves."""
        assert self._roster is not None
        for name in (one for one in absent if self.sites[one].state != "left"):
            self.sites[name].state = "late"
        members, attempt = tuple(sorted(self._open)), self._roster.attempt + 1
        self._open, self._first_at, self._waiting = {}, self._clock(), False
        self.store.emit("repeated", round=self.round, missing=absent, attempt=attempt)
        self._fix_roster(Roster(attempt, members, self._roster.scale), absent)

    def _overdue(self) -> bool:
        return self._clock() - self._first_at >= self.life.limit

    def _close(self, absent: list[str]) -> None:
        assert self.terms is not None
        names = sorted(self._open)
        fragment = self.round % len(self.terms.sizes)
        factors = clip_factors([self._open[name][0].norm for name in names], float(self.terms.values["clip"]))
        members = tuple(
            Member(name, self._open[name][0].samples, factor, _digest(self._open[name][1]), len(self._open[name][1]))
            for name, factor in zip(names, factors, strict=True)
        )
        anchor, state = self._merged(fragment, members)
        reason = f"quorum {self.life.quorum} after {self.life.limit:g} s" if absent else "all sites"
        missing = dict.fromkeys(absent, f"no update within {self.life.limit:g} s of the first one")
        reports = {name: self._open[name][0].report for name in names}
        losses = [report["loss"] for report in reports.values() if "loss" in report]
        self._first_loss = self._first_loss or (sum(losses) / len(losses) if losses else 0.0)
        plan = plan_of(self.terms, reports, self._first_loss)
        result = Result(
            self.round, fragment, members, missing, reason, vector_digest(anchor), plan, *self._attempt_and_scale()
        )
        for name in absent:
            self.sites[name].state = "late"
        self.store.put_result(result)
        self._anchors[fragment] = anchor, state
        file = self.store.write_anchor(fragment, self.round + 1, anchor, state)
        self._files[fragment] = [*self._files[fragment], file][-2:]
        self.round, self._open, self._waiting, self._roster, self._asked = self.round + 1, {}, False, None, {}
        self._commit()
        clipped = {member.name: member.factor for member in members if member.factor < 1}
        self.store.emit("closed", **_facts(result), clipped=clipped, anchor=result.anchor, plan=plan)
        self.changed.notify_all()

    def _merged(self, fragment: int, members: tuple[Member, ...]) -> tuple[Vector, dict[str, AnyArray]]:
        """Anchor and state after the updates of ``members``; the sum of masked ones is kept for the sites."""
        outer, averaged = self.terms_agreed.outer, self.terms_agreed.averaged(fragment)
        found = [unpack(self._open[member.name][1]) for member in members]
        if self._roster is None:
            return merge(outer, *self._anchors[fragment], [vector_of(*one) for one in found], members, averaged)
        words = total([words_of(body) for _, body in found])
        self.store.put_sum(self.round, words.astype("<u4").tobytes())
        return merge_sum(outer, *self._anchors[fragment], words, members, self._roster.scale, averaged)

    def _attempt_and_scale(self) -> tuple[int, float]:
        return (0, 0.0) if self._roster is None else (self._roster.attempt, self._roster.scale)

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
                "roster": None if self._roster is None else asdict(self._roster),
            }
        )

    def wait_result(self, round_: int, seconds: float, attempt: int = 0) -> Result | None:
        """A round's result, once it is closed; ``None`` after so many seconds, or once ``attempt`` is repeated. Raises
        ``PayloadRefused`` (``late``) for a round of which nothing is kept any more."""
        with self.changed:
            self.changed.wait_for(lambda: self.round > round_ or self._attempt_and_scale()[0] > attempt, seconds)
            if self.round <= round_:
                return None
            found = self.store.result(round_)
            if found is None:
                raise PayloadRefused("late", f"round {round_} is long closed; it is {self.round}")
            return found

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
