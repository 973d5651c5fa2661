"""What two to four bits lose of normal weights: mean squared error of weights of size 1, for codes of this repository, for
rounding and for published codes, beside the bound that no code passes (4 to the power of minus the bits).

``python -m benchmarks.ccq`` prints the table of docs/explanation/quantization-quality.md. ``python -m benchmarks.ccq SECONDS``
looks for better numbers ``CODE_SCALE`` and ``CODE_ZP`` of ccq-2.06 for that long.

Bits count a scale of 16 bits per 64 weights, where there is one of its own; scales of whole outputs are left out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

INPUTS, OUTPUTS, GROUP = 1024, 512, 64
Floats = NDArray[np.float32]


def lines() -> Iterator[tuple[str, float, float]]:
    """Code, bits per weight, mean squared error."""
    from erniecore_ccq import clusters, words

    weights = np.random.default_rng(0).standard_normal((INPUTS, OUTPUTS)).astype(np.float32)
    groups = weights.T.reshape(-1, GROUP)
    for bits in (2, 3, 4):
        top = 2 ** (bits - 1)
        yield f"rounding to ±{top - 1}, scale of the largest weight", bits + 0.25, rounded(groups, [top - 1], top - 1)
        yield (
            f"rounding to {-top} … {top - 1}, best of 40 scales",
            bits + 0.25,
            rounded(groups, top * np.linspace(0.4, 2, 40), top),
        )
        yield (
            f"normal-float levels ({2**bits}), scale of the largest weight",
            bits + 0.25,
            normal_float(groups, 2**bits),
        )
        yield f"Lloyd-Max, {2**bits} levels, one scale for all", bits, lloyd_max(groups, 2**bits)
    yield "**ccq-2.06**", 2.0625, error(weights, clusters.decode(clusters.encode(weights), INPUTS))
    yield "**ccq-2.5**", 2.5, error(weights, words.decode(*words.encode(weights), INPUTS))
    yield "E8 lattice of QuIP# (published)", 2, 0.089
    yield "trellis of QTIP (published)", 2, 0.069


def error(weights: Floats, found: Floats) -> float:
    """Mean squared error of the decoded weights."""
    return float(np.square(weights - found, dtype=np.float64).mean())


def rounded(groups: Floats, tops: list[int] | NDArray[np.float64], top: int) -> float:
    """Whole numbers from -``top`` to what the bits have; the largest weight stands at the best of ``tops``."""
    last = top if len(tops) == 1 else top - 1
    best = np.full(len(groups), np.inf)
    for value in tops:
        s = np.abs(groups).max(axis=1, keepdims=True) / np.float32(value)
        lost = np.square(groups - np.clip(np.rint(groups / s), -top, last) * s).mean(axis=1)
        best = np.minimum(best, lost)
    return float(best.mean())


def normal_float(groups: Floats, count: int) -> float:
    """Means of quantiles of a normal distribution with a zero, as NF4 has them, for any number of levels."""
    quantile, half, end = NormalDist().inv_cdf, count // 2, 0.5 * (1 / (2 * count) + 1 / (2 * count - 2))
    up = [quantile(p) for p in np.linspace(1 - end, 0.5, half + 1)[:-1]]
    down = [-quantile(p) for p in np.linspace(1 - end, 0.5, half)[:-1]]
    levels = np.sort(np.array([*down, 0.0, *up], np.float32) / max(up))
    s = np.abs(groups).max(axis=1, keepdims=True)
    return error(groups, nearest(groups / s, levels) * s)


def lloyd_max(groups: Floats, count: int) -> float:
    """Levels of least error for a normal density, by iteration over these weights."""
    flat = np.sort(groups.reshape(-1))[::8]
    levels = np.quantile(flat, (np.arange(count) + 0.5) / count)
    for _ in range(200):
        ends = np.searchsorted(flat, (levels[1:] + levels[:-1]) / 2)
        levels = np.array([part.mean() for part in np.split(flat, ends)])
    return error(groups, nearest(groups, levels.astype(np.float32)))


def nearest(values: Floats, levels: Floats) -> Floats:
    """The nearest of sorted levels."""
    found: Floats = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, values)]
    return found


def search(seconds: float) -> None:
    """Print the best ``CODE_SCALE`` and ``CODE_ZP`` of random ones, with one scale for all weights."""
    from erniecore_ccq.clusters import vectors

    rng, best, end = np.random.default_rng(1), np.inf, time.monotonic() + seconds
    x = rng.standard_normal((6000, 4)).astype(np.float32)
    while time.monotonic() < end:
        scale = int(rng.integers(70 * 16, 129 * 16)) / 16
        zero = round(2 * (16384 - scale * 127.5 + float(rng.integers(-1200, 1200)))) / 2
        book = vectors(scale, zero)
        squares, dots = np.square(book).sum(axis=1), x @ book.T
        for s in np.linspace(0.05, 0.08, 7, dtype=np.float32):
            lost = float((np.square(x).sum(axis=1) + (s * s * squares - 2 * s * dots).min(axis=1)).mean()) / 4
            if lost < best:
                best = lost
                print(f"CODE_SCALE {scale}, CODE_ZP {zero}: {lost:.4f} at scale {s:.4f}", flush=True)


def main() -> None:
    """Print the table, or write it with an argument."""
    if len(sys.argv) > 1:
        return search(float(sys.argv[1]))
    print("| code | bits | mean squared error | dB | bound |\n|---|---|---|---|---|")
    for name, bits, lost in sorted(lines(), key=lambda line: -line[2]):
        print(f"| {name} | {bits:g} | {lost:.4f} | {-10 * np.log10(lost):.2f} | {4.0**-bits:.4f} |")
    return None


if __name__ == "__main__":
    main()
