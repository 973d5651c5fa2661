"""The 2.5-bit code in numpy: which words there are, the words nearest to given weights, and the way back. No layers, no paddle.

64 inputs of one output are a group of ten 16-bit words, 2.5 bits per weight. A weight is a window of three bits:

    words 0 to 8   seven weights each, windows at the shifts 13, 11, 9 and 6, 4, 2, 0
    word 9         one weight at shift 13; below it the group's scale, a whole number of 13 bits

    W' = (window - 4) · local · super                    super: float32, one per output

Windows two bits apart share a bit: the last bit of one is the first, the sign, of the next. Such a chain of three or four
windows is a convolutional code with two states, and the nearest chain is found exactly (Viterbi) for a given scale.

Source of the layout: CCQ (arXiv:2507.07145) and the open decoder of FastDeploy, row for row. How its authors search codes
and scales is not published: the search here is our own. Whether released checkpoints keep the rows in this order on disk is
not known either, so these arrays are not claimed to load anywhere else.

Letters: I inputs, O outputs, G groups of 64 inputs, n groups of any output, t position in a chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

GROUP, WORDS = 64, 10
#: places of a word's windows; the first three are a chain, and the last four
SHIFTS = (13, 11, 9, 6, 4, 2, 0)
CHAINS = ((0, 1, 2), (3, 4, 5, 6))
MOST = (1 << 13) - 1
#: scales that are tried per group, from far below the usual one to the one that reaches the largest weight
_TRIED = 14
#: groups that are searched at a time: what fits into a core's cache
_BLOCK = 2048
#: times that a scale is fitted to the words found with the one before
_FITS = 2

Floats: TypeAlias = NDArray[np.float32]
Arguments: TypeAlias = NDArray[np.uint16]


def encode(weight: Floats, importance: Floats | None = None) -> tuple[Arguments, Floats]:
    """Words [10 G, O] and super scales float32 [O] of a weight [I, O] of finite values.

    The scale of each group is the best of some, fitted to its words by least squares; a group of zeros has scale 0 and
    stays zero. ``importance`` [I]: what the squared error of each input counts, for example mean squares of activations.
    """
    inputs, outputs = weight.shape
    groups = -(-inputs // GROUP)
    padded = np.zeros((groups * GROUP, outputs), np.float32)
    padded[:inputs] = weight
    counts = np.zeros(groups * GROUP, np.float32)
    counts[:inputs] = 1 if importance is None else importance
    w = padded.reshape(groups, GROUP, outputs).transpose(1, 0, 2).reshape(GROUP, -1)
    c = np.repeat(counts.reshape(groups, GROUP).T, outputs, axis=1)
    size = np.abs(w).max(axis=0)
    size[size == 0] = 1
    unit = w / size  # so that squares of any weight are in range
    scales = np.concatenate([_scales(unit[:, part], c[:, part]) for part in _blocks(w.shape[1])]) * size
    scales = scales.reshape(groups, outputs)
    super_scales = (scales.max(axis=0) / MOST).astype(np.float32)
    super_scales[super_scales == 0] = 1
    local = np.clip(np.rint(scales / super_scales), 0, MOST)
    step = (local.astype(np.float32) * super_scales).reshape(-1)
    step[step == 0] = np.inf
    found = [nearest(w[:, part] / step[part], c[:, part]) for part in _blocks(w.shape[1])]
    words = np.concatenate(found, axis=1).reshape(WORDS, groups, outputs)
    words[WORDS - 1] |= local.astype(np.uint16)
    return words.transpose(1, 0, 2).reshape(groups * WORDS, outputs), super_scales


def decode(words: Arguments, super_scales: Floats, inputs: int) -> Floats:
    """W' [I, O] of words [10 G, O]."""
    outputs = words.shape[1]
    grouped = words.reshape(-1, WORDS, outputs)
    local = (grouped[:, WORDS - 1] & MOST).astype(np.float32)
    found = values(grouped.transpose(1, 0, 2)) * (local * super_scales)
    whole: Floats = found.transpose(1, 0, 2).reshape(-1, outputs)[:inputs].astype(np.float32)
    return whole


def values(words: Arguments) -> Floats:
    """window - 4 of words [10, ..]: [64, ..]."""
    shifts = np.array(SHIFTS, np.uint16).reshape(-1, *[1] * (words.ndim - 1))
    windows = (words[:-1, None] >> shifts) & 7
    last = words[-1:] >> 13
    found: Floats = np.concatenate([windows.reshape(GROUP - 1, *words.shape[1:]), last]).astype(np.float32) - 4
    return found


def nearest(x: Floats, counts: Floats) -> Arguments:
    """The words [10, n] whose values are nearest to x [64, n], with squares weighted by ``counts``; scale bits are 0."""
    found = np.zeros((WORDS, x.shape[1]), np.uint16)
    x_words, counts_words = (a[:-1].reshape(WORDS - 1, len(SHIFTS), -1) for a in (x, counts))
    for chain in CHAINS:
        windows = _trace(x_words, counts_words, chain)
        for place, window in zip(chain, windows, strict=True):
            found[:-1] |= window.astype(np.uint16) << np.uint16(SHIFTS[place])
    found[-1] = (np.clip(np.rint(x[-1]), -4, 3) + 4).astype(np.uint16) << 13
    return found


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, max(count, 1), _BLOCK))


def _branches(x: Floats, counts: Floats) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """[first bit][last bit] -> the least weighted square over the middle bit: (|x - c| - 1)² with c between the two."""
    low, high = (
        tuple(counts * np.square(np.abs(x - np.float32(4 * first + last - 3)) - 1) for last in (0, 1))
        for first in (0, 1)
    )
    return (low[0], low[1]), (high[0], high[1])


def _cost(x: Floats, counts: Floats) -> Floats:
    """Σ counts (x - value)² [n] of the nearest words to x [64, n]."""
    total = counts[-1] * np.square(x[-1] - np.clip(np.rint(x[-1]), -4, 3))
    x_words, counts_words = (a[:-1].reshape(WORDS - 1, len(SHIFTS), -1) for a in (x, counts))
    for chain in CHAINS:
        before: tuple[Floats, Floats] | None = None
        for place in chain:
            (b00, b01), (b10, b11) = _branches(x_words[:, place], counts_words[:, place])
            if before is not None:
                b00, b01, b10, b11 = b00 + before[0], b01 + before[0], b10 + before[1], b11 + before[1]
            before = np.minimum(b00, b10), np.minimum(b01, b11)
        if before is not None:
            total = total + np.minimum(*before).sum(axis=0)
    return np.asarray(total, np.float32)


def _trace(x_words: Floats, counts: Floats, chain: tuple[int, ...]) -> list[NDArray[np.bool_]]:
    """The windows of the nearest chain, [9, n] for each of its places."""
    before: tuple[Floats, Floats] = (np.zeros_like(x_words[:, 0]), np.zeros_like(x_words[:, 0]))
    chosen = []
    for place in chain:
        (b00, b01), (b10, b11) = _branches(x_words[:, place], counts[:, place])
        b00, b01, b10, b11 = b00 + before[0], b01 + before[0], b10 + before[1], b11 + before[1]
        chosen.append((b10 < b00, b11 < b01))
        before = np.minimum(b00, b10), np.minimum(b01, b11)
    last = before[1] < before[0]
    windows = []
    for place, (even, odd) in zip(reversed(chain), reversed(chosen), strict=True):
        first = np.where(last, odd, even)
        middle = x_words[:, place] > 4 * first.astype(np.float32) + last - 3
        windows.append(4 * first + 2 * middle + last)
        last = first
    return windows[::-1]


def _scales(w: Floats, counts: Floats) -> Floats:
    """A scale for each group, w [64, n]: [n], 0 where all is zero."""
    usual: Floats = np.sqrt(np.square(w).sum(axis=0) / np.maximum((w != 0).sum(axis=0), 1)).astype(np.float32)
    empty = usual == 0
    usual[empty] = 1
    most = np.maximum(np.abs(w).max(axis=0) / 3, np.float32(0.3) * usual)
    least = np.float32(0.3) * usual
    best: Floats = np.full(w.shape[1], np.inf, np.float32)
    chosen: Floats = usual.copy()
    for share in np.linspace(0, 1, _TRIED, dtype=np.float32):
        s: Floats = least ** (1 - share) * most**share
        best, chosen = _better(w, counts, s, best, chosen)
    for _ in range(_FITS):
        q = values(nearest(w / chosen, counts))
        bottom = (counts * q * q).sum(axis=0)
        s = (counts * w * q).sum(axis=0) / np.where(bottom > 0, bottom, 1)
        best, chosen = _better(w, counts, np.where(s > 0, s, chosen).astype(np.float32), best, chosen)
    chosen[empty] = 0
    return chosen


def _better(w: Floats, counts: Floats, s: Floats, best: Floats, chosen: Floats) -> tuple[Floats, Floats]:
    cost = _cost(w / s, counts) * s * s
    return np.where(cost < best, cost, best), np.where(cost < best, s, chosen)
