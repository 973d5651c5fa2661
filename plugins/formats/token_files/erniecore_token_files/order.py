"""The order of samples of token files as pure functions of (seed, index): no list of indices is ever made.

A shuffle is a keyed bijection of 0..n-1 (a Feistel network whose rounds are splitmix64's mixing function, walked until
it lands below n: Black & Rogaway, 2002), and a blend takes sources in the order of the times (k + ½) / w at which the
k-th sample of a source with weight w is due, so that every beginning of the order has the sources in proportion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]

_ROUNDS = 6
#: halvings of the search interval: a double has no more digits
_HALVINGS = 80


def permuted(indices: IntArray, size: int, *, seed: int, purpose: str) -> IntArray:
    """Where a shuffle of 0..size-1 puts these places: int64, as long as ``indices``; each of them below ``size``.

    O(len(indices)) time and memory whatever ``size``; another seed or purpose is another shuffle.

    Raises:
        ValueError: an index is not in 0..size-1.
    """
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < size:
        raise ValueError(f"indices outside of 0..{size - 1}")
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = _keys(seed, purpose)
    values = _network(indices.astype(np.uint64), half, keys)
    while (outside := values >= size).any():
        values[outside] = _network(values[outside], half, keys)
    return values.astype(np.int64)


def _keys(seed: int, purpose: str) -> NDArray[np.uint64]:
    digest = hashlib.blake2b(f"{seed}/corpus/{purpose}".encode(), digest_size=8 * _ROUNDS).digest()
    return np.frombuffer(digest, "<u8").astype(np.uint64)


def _network(values: NDArray[np.uint64], half: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of the numbers below 2^(2 half)."""
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    joined: NDArray[np.uint64] = (left << shift) | right
    return joined


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's output function."""
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def blended(weights: Sequence[float] | IntArray, indices: IntArray) -> tuple[IntArray, IntArray]:
    """Which source the samples ``indices`` of a blend come from, and the how-manieth of that source each is.

    Args:
        weights: at least 0, not all 0, one per source. indices: int64 [n], places in the endless blend, counted from 0.

    Returns:
        (source, rank), int64 [n] each. Over all indices every (source, rank) occurs once; of the first i samples each
        source has its share of i to within the number of sources; of the first sum(weights) exactly its weight, where
        weights are whole.
    """
    shares = np.asarray(weights, np.float64) / float(sum(weights))
    low: NDArray[np.float64] = np.zeros(len(indices))
    high: NDArray[np.float64] = (indices + len(shares) + 1).astype(np.float64)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = _due(shares, middle).sum(axis=1) > indices
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    before = _due(shares, low)
    gained = (_due(shares, high) - before).cumsum(axis=1)
    wanted = indices - before.sum(axis=1)
    source = (gained > wanted[:, None]).argmax(axis=1)
    return source, np.take_along_axis(before, source[:, None], axis=1)[:, 0]


def _due(shares: NDArray[np.float64], times: NDArray[np.float64]) -> IntArray:
    """int64 [n, S]: samples of each source that are due up to each time."""
    return np.floor(shares * times[:, None] + 0.5).astype(np.int64)
