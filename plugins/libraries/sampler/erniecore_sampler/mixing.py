"""How one epoch is drawn from several sources: exact counts first, then an order. Pure functions of (sizes, settings, seed,
epoch); knows nothing of tokens.

Every source is an endless walk over its samples, in a new order each time round (``order.walk``). An epoch takes the next
stretch of each walk, so what one epoch leaves out comes first in the next, and nothing is repeated before its source is
used up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from erniecore_sampler.order import generator, index_dtype, shares, walk

if TYPE_CHECKING:
    from erniecore_sampler.order import Array


@dataclass(frozen=True)
class Mix:
    """The settings of mixing; the names are those of ``data``.

    Attributes:
        kind: ``concat``, ``weighted``, ``interleave-under`` or ``interleave-over``.
        weights, epochs: per source; empty: 1 for each.
        epoch_samples: samples per epoch instead of what ``kind`` says; 0: off.
    """

    kind: str = "concat"
    weights: tuple[float, ...] = ()
    epochs: tuple[float, ...] = ()
    epoch_samples: int = 0


def stretches(sizes: Sequence[int], mix: Mix, epoch: int) -> list[tuple[int, int]]:
    """(start, count) of every source's walk in ``epoch``; sources without samples give (0, 0).

    * ``concat``: start ⌊epoch · x⌋, stop ⌊(epoch + 1) · x⌋ with x = ``epochs`` · size: after any number of epochs exactly
      the whole part of what the setting says.
    * ``weighted``: all sizes together, split by weight to whole numbers (largest remainder).
    * ``interleave-under``: the first source whose x runs out when drawing by weight is used up, of the others as many as
      belong to that, rounded down. ``interleave-over``: the last one is, rounded up; smaller ones repeat.
    * with ``epoch_samples``: that many, split by weight (``weighted``) or by x (``concat``).
    """
    used = [i for i, size in enumerate(sizes) if size]
    weight = {i: _exact(mix.weights, i) for i in used}
    amount = {i: _exact(mix.epochs, i) * sizes[i] for i in used}
    out = [(0, 0)] * len(sizes)
    if not used:
        return out
    if mix.kind == "concat" and not mix.epoch_samples:
        for i in used:
            start, stop = math.floor(epoch * amount[i]), math.floor((epoch + 1) * amount[i])
            out[i] = start, stop - start
        return out
    for i, count in zip(used, _counts(used, sizes, weight, amount, mix), strict=True):
        out[i] = epoch * count, count
    return out


def _counts(
    used: Sequence[int], sizes: Sequence[int], weight: dict[int, Fraction], amount: dict[int, Fraction], mix: Mix
) -> list[int]:
    """Samples of each used source in every epoch."""
    if mix.epoch_samples or mix.kind == "weighted":
        total = mix.epoch_samples or sum(sizes)
        return shares([float((weight if mix.kind == "weighted" else amount)[i]) for i in used], total)
    limits = {i: max(1, math.floor(amount[i])) for i in used}
    reach = {i: limits[i] / weight[i] for i in used}
    if mix.kind == "interleave-under":
        draws = min(reach.values())
        return [math.floor(weight[i] * draws) for i in used]
    if mix.kind == "interleave-over":
        draws = max(reach.values())
        return [math.ceil(weight[i] * draws) for i in used]
    raise AssertionError(f"unknown mix {mix.kind!r}")


def _exact(values: Sequence[float], index: int) -> Fraction:
    """As the user wrote it: 0.1 is a tenth."""
    return Fraction(str(values[index])) if values else Fraction(1)


def num_samples(sizes: Sequence[int], mix: Mix, epoch: int) -> int:
    """Samples of one epoch."""
    return sum(count for _, count in stretches(sizes, mix, epoch))


def epoch_order(sizes: Sequence[int], mix: Mix, *, shuffle: bool, seed: int, epoch: int) -> Array:
    """Sample indices of one epoch over concatenated sources, int32 (int64 beyond 2³¹ samples) [num_samples].

    Shuffled: in random order over all sources. Else in the order of the files: one source after the other, or evenly
    interleaved where ``mix`` is an interleaving or the epoch has a length of its own.
    """
    starts = np.cumsum([0, *sizes])
    dtype = index_dtype(int(starts[-1]))
    parts = stretches(sizes, mix, epoch)
    if mix.kind == "concat" and all(part == (epoch * size, size) for part, size in zip(parts, sizes, strict=True)):
        order = np.arange(starts[-1], dtype=dtype)
    else:
        walks = [
            walk(int(size), start, count, seed, f"source-{i}" if shuffle else "", dtype) + dtype(starts[i])
            for i, (size, (start, count)) in enumerate(zip(sizes, parts, strict=True))
            if count
        ]
        order = np.concatenate([np.zeros(0, dtype), *walks])
        if walks and not shuffle and (mix.kind.startswith("interleave") or mix.epoch_samples):
            order = order[_evenly([len(w) for w in walks])]
    if shuffle:
        generator(seed, "epoch", epoch).shuffle(order)
    return order


def _evenly(counts: Sequence[int]) -> Array:
    """Indices that spread each part evenly over the whole."""
    places = np.concatenate([(np.arange(n) + 0.5) / n for n in counts])
    return np.argsort(places, kind="stable")
