"""Pseudo-random orders and choices as pure functions of (seed, purpose, index). No generator state anywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]


def generator(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """A generator of its own for one purpose and index."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{index}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


#: rows that are looked at together; bounds the temporary arrays
_AT_ONCE = 1 << 20


def is_eval_row(seed: int, rows: Array, fraction: float) -> NDArray[np.bool_]:
    """bool [N]: whether each of ``rows`` (indices, [N]) belongs to the eval split. A pure function of (seed, row index), by
    splitmix64, so appending rows does not move others."""
    key = np.uint64(int.from_bytes(hashlib.blake2b(f"{seed}/held-out".encode(), digest_size=8).digest(), "little"))
    chosen = np.zeros(len(rows), np.bool_)
    for start in range(0, len(rows), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        with np.errstate(over="ignore"):
            z = (np.asarray(rows[part]).astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + key
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
        chosen[part] = (z >> np.uint64(11)).astype(np.float64) / 2.0**53 < fraction
    return chosen


def shares(weights: Sequence[float], total: int) -> list[int]:
    """``total`` split in proportion to ``weights``: whole numbers that sum to it (largest remainder)."""
    exact = [w / sum(weights) * total for w in weights]
    counts = [int(x) for x in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def index_dtype(size: int) -> type[np.int32 | np.int64]:
    """The smaller dtype that holds indices below ``size``."""
    return np.int32 if size < 2**31 else np.int64


def walk(size: int, start: int, count: int, seed: int, purpose: str, dtype: type[np.generic] = np.int64) -> Array:
    """``count`` indices from position ``start`` of an endless walk over 0..size-1, a new order each time round.

    ``purpose``: names the random stream; empty: always in order."""
    out = [np.zeros(0, dtype)]
    for turn in range(start // size, (start + max(count, 1) - 1) // size + 1):
        order = np.arange(size, dtype=dtype)
        if purpose:
            generator(seed, purpose, turn).shuffle(order)
        out.append(order[max(start - turn * size, 0) : start + count - turn * size])
    return np.concatenate(out)
