"""Pseudo-random orders and choices as pure functions of (seed, purpose, index). No generator state anywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from erniecore.types.samples import IntArray


def generator(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """A generator of its own for one purpose and index."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{index}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def held_out(seed: int, num_rows: int, fraction: float) -> NDArray[np.bool_]:
    """bool [num_rows]: whether a row belongs to the held-out part. Each row's answer depends on (seed, its index)
    alone, so rows that are added later do not move others (splitmix64 of the index)."""
    key = np.uint64(int.from_bytes(hashlib.blake2b(f"{seed}/held-out".encode(), digest_size=8).digest(), "little"))
    with np.errstate(over="ignore"):
        z = (np.arange(num_rows, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + key
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    chosen: NDArray[np.bool_] = (z >> np.uint64(11)).astype(np.float64) / 2.0**53 < fraction
    return chosen


def shares(weights: Sequence[float], total: int) -> list[int]:
    """``total`` split in proportion to ``weights``: whole numbers that sum to it (largest remainder)."""
    exact = [w / sum(weights) * total for w in weights]
    counts = [int(x) for x in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def epoch_order(
    sizes: Sequence[int], weights: Sequence[float], *, mix: str, shuffle: bool, seed: int, epoch: int
) -> IntArray:
    """Sample indices of one epoch over concatenated sources, int64 [sum(sizes)].

    Args:
        sizes: samples per source. ``weights``: their shares when ``mix`` is ``"weighted"``.
        mix: ``"concat"``: every sample once. ``"weighted"``: as many, exactly by weight; a source that is too small is
            repeated, one that is too large continues in the next epoch where it stopped.
    """
    starts = np.cumsum([0, *sizes])
    if mix == "concat":
        order = np.arange(starts[-1], dtype=np.int64)
    else:
        used = [i for i, size in enumerate(sizes) if size]
        counts = shares([weights[i] for i in used], int(starts[-1])) if used else []
        parts = [
            starts[i] + _walk(int(sizes[i]), epoch * count, count, seed, f"source-{i}" if shuffle else "")
            for i, count in zip(used, counts, strict=True)
        ]
        order = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return generator(seed, "epoch", epoch).permutation(order) if shuffle else order


def _walk(size: int, start: int, count: int, seed: int, purpose: str) -> IntArray:
    """``count`` indices from position ``start`` of an endless walk over 0..size-1, a new order each time round."""
    out = []
    for turn in range(start // size, (start + max(count, 1) - 1) // size + 1):
        order = generator(seed, purpose, turn).permutation(size) if purpose else np.arange(size)
        out.append(order[max(start - turn * size, 0) : start + count - turn * size])
    return np.concatenate(out).astype(np.int64)
