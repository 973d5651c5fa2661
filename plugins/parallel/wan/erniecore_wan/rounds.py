"""A round as everybody sees it: what all sites agreed on, what a closed round has decided, and the step that follows from it.

The coordinator and every site compute :func:`merge` from the same bytes, so that their anchors have the same bits.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np

from erniecore_wan.arrays import AnyArray, Vector, Words
from erniecore_wan.masks import Roster, from_fixed
from erniecore_wan.outer import Name, Outer, outer_step
from erniecore_wan.rules import weighted_mean

#: keys of the terms that say which model it is; the others are settings
MODEL_KEYS = ("model", "parameters")
#: (start, stop) of parts of a vector
Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Terms:
    """What all sites of a run have in common; the first site that joins brings it, and others must have the same.

    Attributes:
        values: JSON. ``model``, ``parameters``: digests of the frozen weights, and of names and shapes of what is exchanged.
            ``sizes``: elements of each fragment. ``outer``: fields of :class:`Outer`. ``clip``: of the norms.
            ``adaptive``, ``overhead``, ``cap``, ``form``, ``k``, ``chunk``: how updates travel, and who decides it.
            ``secure``: whether they are masked. ``averaged``: (start, stop) in each fragment of what no outer optimizer touches.
    """

    values: Mapping[str, Any]

    @property
    def secure(self) -> bool:
        """Whether the coordinator sees the sum of the updates alone."""
        return bool(self.values.get("secure", False))

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.values, sort_keys=True).encode()).hexdigest()

    @property
    def sizes(self) -> list[int]:
        """Elements of each fragment."""
        return [int(size) for size in self.values["sizes"]]

    def averaged(self, fragment: int) -> list[tuple[int, int]]:
        """(start, stop) in a fragment of values that become the mean of the sites."""
        found = self.values.get("averaged") or [[] for _ in self.sizes]
        return [(int(start), int(stop)) for start, stop in found[fragment]]

    @property
    def outer(self) -> Outer:
        return Outer(**self.values["outer"])

    def checked(self) -> Terms:
        """The same terms, of which rounds can be closed. Raises ``ValueError``, ``TypeError`` or ``LookupError``."""
        sizes, numbers = self.sizes, {key: float(self.values[key]) for key in ("clip", "overhead", "cap", "k", "chunk")}
        if not 1 <= len(sizes) <= 1024 or not all(0 < size < 1 << 40 for size in sizes):
            raise ValueError("impossible sizes of fragments")
        for fragment, size in enumerate(sizes):
            if not all(0 <= start <= stop <= size for start, stop in self.averaged(fragment)):
                raise ValueError("averaged values outside of their fragment")
        outer = [float(value) for name, value in asdict(self.outer).items() if name != "name"]
        if self.outer.name not in get_args(Name) or not all(
            0 <= number < math.inf for number in [*numbers.values(), *outer]
        ):
            raise ValueError("an outer optimizer or numbers that no run has")
        if not (0 < numbers["overhead"] < 1 and numbers["cap"] >= 1):
            raise ValueError("overhead and cap that no run has")
        return self

    def differences(self, other: Terms) -> dict[str, tuple[Any, Any]]:
        """Key -> (here, there) where they differ; keys of the model first."""
        keys = sorted({*self.values, *other.values}, key=lambda key: (key not in MODEL_KEYS, key))
        pairs = {key: (self.values.get(key), other.values.get(key)) for key in keys}
        return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


@dataclass(frozen=True, slots=True)
class Member:
    """A site whose update counted. ``samples``: its weight. ``factor``: of clipping. ``digest``, ``num_bytes``: of its update."""

    name: str
    samples: float
    factor: float
    digest: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Result:
    """A closed round.

    Attributes:
        round, fragment: which. members: in the order in which they are added up.
        missing: site -> why it is not among them. reason: why the round was closed then.
        anchor: digest of the fragment's anchor after it. plan: site -> ``interval``, ``form``, ``k``, ``reason`` for what comes,
            where the coordinator decides that. attempt, scale: of the roster, where updates are masked.
    """

    round: int
    fragment: int
    members: tuple[Member, ...]
    missing: Mapping[str, str]
    reason: str
    anchor: str
    plan: Mapping[str, Mapping[str, Any]]
    attempt: int = 0
    scale: float = 0.0

    @property
    def roster(self) -> Roster:
        """Who took part, where updates were masked."""
        return Roster(self.attempt, tuple(member.name for member in self.members), self.scale)

    def member(self, name: str) -> Member | None:
        """A site's part in it."""
        return next((member for member in self.members if member.name == name), None)


def result_from(values: Mapping[str, Any]) -> Result:
    """A result from its JSON. Raises ``ValueError``, ``TypeError`` or ``LookupError``."""
    members = tuple(Member(**member) for member in values["members"])
    return Result(**{**values, "members": members})


def merge(
    outer: Outer,
    anchor: Vector,
    state: Mapping[str, AnyArray],
    updates: Sequence[Vector],
    members: Sequence[Member],
    averaged: Ranges = (),
) -> tuple[Vector, dict[str, AnyArray]]:
    """Anchor and state of the outer optimizer after a round.

    Args:
        updates: of ``members``, in their order, float32 [n] each. averaged: (start, stop) of values that become the mean.
    """
    weights, factors = [member.samples for member in members], [member.factor for member in members]
    return _stepped(outer, anchor, weighted_mean(updates, weights, factors), state, averaged)


def _stepped(
    outer: Outer, anchor: Vector, mean: Vector, state: Mapping[str, AnyArray], averaged: Ranges
) -> tuple[Vector, dict[str, AnyArray]]:
    """A step of the outer optimizer, but for ``averaged``: a controller's state is no weight that momentum could carry on."""
    found, after = outer_step(outer, anchor, mean, state)
    for start, stop in averaged:
        found[start:stop] = anchor[start:stop] - mean[start:stop]
    return found, after


def merge_sum(
    outer: Outer,
    anchor: Vector,
    state: Mapping[str, AnyArray],
    words: Words,
    members: Sequence[Member],
    scale: float,
    averaged: Ranges = (),
) -> tuple[Vector, dict[str, AnyArray]]:
    """:func:`merge` where only the sum of the masked updates is known.

    Args:
        words: uint32 [n], the sum of ``samples / scale · Δ`` of all members in fixed point. scale: of the roster.
    """
    whole = sum(member.samples for member in members) / scale
    mean = np.asarray(from_fixed(words) / np.float32(whole), np.float32)
    return _stepped(outer, anchor, mean, state, averaged)
