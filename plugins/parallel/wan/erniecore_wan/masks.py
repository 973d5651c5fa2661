"""Secure aggregation: a coordinator that learns the sum of the sites' updates and of none of them alone.

An update, times the weight of its site, becomes fixed-point numbers modulo 2³². Each pair of sites derives the same stream
from a secret that only the two have; one adds it, the other subtracts it, so that the sum over all sites of a round is that of
the updates, to the bit (Bonawitz et al. 2017, without the recovery of dropped sites: a round that loses one is repeated among
the others, with other streams). This protects from a coordinator that follows the protocol and is curious.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from erniecore_wan.arrays import Vector, Words

#: bits behind the point: steps of 1.5e-8, and sums of up to 32
FRACTION = 26


@dataclass(frozen=True, slots=True)
class Roster:
    """Who takes part in a round whose updates are masked; fixed before the first of them is sent.

    Attributes:
        attempt: 0, and one more each time that a site is missing and the others repeat the round. members: names, sorted.
        scale: samples that count as 1, so that weighted updates stay in the range of the fixed-point numbers.
    """

    attempt: int
    members: tuple[str, ...]
    scale: float


def roster_from(values: Mapping[str, Any]) -> Roster:
    """A roster from its JSON. Raises ``ValueError``, ``TypeError`` or ``LookupError``."""
    found = Roster(int(values["attempt"]), tuple(map(str, values["members"])), float(values["scale"]))
    if found.attempt < 0 or len(found.members) < 2 or not 0 < found.scale < math.inf:
        raise ValueError(f"a roster that no round has: {found}")
    return found


def to_fixed(vector: Vector, num_sites: int) -> Words:
    """Fixed-point numbers of float32 [n], rounded to nearest even.

    Raises:
        ValueError: a value whose sum over ``num_sites`` could overflow.
    """
    limit = (1 << 31) / (1 << FRACTION) / num_sites
    largest = float(np.abs(vector).max(initial=0.0))
    if not largest < limit:
        raise ValueError(f"a value of {largest:.3g} is beyond what {num_sites} sites can add up safely ({limit:.3g})")
    scaled = np.rint(vector.astype(np.float64) * (1 << FRACTION))
    return scaled.astype(np.int64).astype(np.uint32)


def from_fixed(words: Words) -> Vector:
    """float32 [n] of a sum of fixed-point numbers."""
    return np.asarray(words.astype(np.int32).astype(np.float64) / (1 << FRACTION), np.float32)


def stream(secret: bytes, where: Sequence[int], size: int) -> Words:
    """The mask of a pair: uint32 [size] from SHAKE-256 of its secret and of ``where`` (round, attempt)."""
    seed = b"ewan mask" + secret + b"".join(int(number).to_bytes(8, "little") for number in where)
    return np.frombuffer(hashlib.shake_256(seed).digest(4 * size), "<u4").astype(np.uint32)


def masked_update(
    delta: Vector, samples: float, own: str, secrets: Mapping[str, bytes], round_: int, roster: Roster
) -> Words:
    """What a site sends in a round: samples / scale · Δ in fixed point, masked for each other site of the roster.

    Args:
        delta: float32 [n]. samples: its weight. secrets: name of another site -> what only the two know.

    Raises:
        ValueError: a value beyond the fixed-point range.
    """
    weighted = np.asarray(delta * np.float32(samples / roster.scale), np.float32)
    words = to_fixed(weighted, len(roster.members))
    others = {name: secrets[name] for name in roster.members if name != own}
    return mask(words, own, others, (round_, roster.attempt))


def mask(words: Words, own: str, secrets: Mapping[str, bytes], where: Sequence[int]) -> Words:
    """``words`` with the masks of this site and each other site of the round.

    Args:
        own: name of this site. secrets: name of another site -> what only the two know.
    """
    masked: Words = words.copy()
    for name in sorted(secrets):
        one = stream(secrets[name], where, len(words))
        masked = np.add(masked, one) if own < name else np.subtract(masked, one)
    return masked


def total(masked: Sequence[Words]) -> Words:
    """The sum modulo 2³²; the masks of a complete round are gone."""
    found = np.zeros_like(masked[0])
    for words in masked:
        found += words
    return found
