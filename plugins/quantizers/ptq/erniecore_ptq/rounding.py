"""GPTQ and AWQ on one matrix, in numpy and float64: no layers, no model. Codes and scales are those of ``weight_only``.

A layer's error on its calibration inputs X is that of its weight seen through their Hessian H = XᵀX:
|X (W - W')|² = tr((W - W')ᵀ H (W - W')). Both methods need H and nothing else of the data.

Letters: I inputs, O outputs, G groups of g inputs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from erniecore_weight_only.schemes import Scheme
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
_TOP = {"int8": 127, "int4": 7}
#: rows that are rounded before the others are corrected for all of them at once
_BLOCK = 128
#: shares of the largest weight that are tried as the largest code
_FRACTIONS = tuple(round(1 - 0.04 * step, 2) for step in range(14))


class Rounded(NamedTuple):
    """Codes int8 [O, I] and scales float32 [O, G] (G = 1 without groups)."""

    qweight: NDArray[np.int8]
    scales: NDArray[np.float32]

    def dequantize(self, group: int) -> Floats:
        """The dequantized weight W' [I, O]."""
        spread = _spread(self.scales.astype(np.float64), group, self.qweight.shape[1])
        found: Floats = (self.qweight * spread).T
        return found


def error(w: Floats, w2: Floats, h: Floats) -> float:
    """|X (W - W')|²; never below zero."""
    d = w - w2
    return max(float(np.einsum("io,ij,jo->", d, h, d, optimize=True)), 0.0)


def signal_and_noise(y: Any, y2: Any) -> list[float]:
    """Sums of squares of what was and of its difference to what is, as :func:`decibels` takes them; arrays or tensors."""
    wide = y.astype("float64")
    return [float((t**2).sum()) for t in (wide, y2.astype("float64") - wide)]


def decibels(signal: float, noise: float) -> float:
    """Of two sums of squares; infinite where nothing was lost, or nothing was there."""
    return 10 * math.log10(signal / noise) if signal > 0 and noise > 0 else math.inf


def nearest(w: Floats, scheme: Scheme, importance: Floats | None = None) -> Rounded:
    """Round to nearest. ``importance`` [I]: choose each scale among some below the largest weight's, so that the squared
    error, weighted by it, is least; None: the largest weight's."""
    scales = _scales(w, scheme, importance)
    spread = _spread(scales.astype(np.float64), scheme.group, w.shape[0])
    return Rounded(_quantize(w.T / spread, scheme), scales)


def gptq(w: Floats, h: Floats, scheme: Scheme, *, damping: float, by_activation: bool, search_scale: bool) -> Rounded:
    """Round one input after the other and let those that are left make up for it (arXiv:2210.17323, algorithm 1).

    Inputs that are always zero are rounded to nearest. Scales are chosen before, so that any order keeps groups together.

    Args:
        w: [I, O]. h: [I, I]. damping: times the mean of the diagonal. by_activation: largest of the diagonal first.
    """
    width, diagonal = w.shape[0], np.diag(h).copy()
    scales = _scales(w, scheme, diagonal if search_scale and diagonal.any() else None)
    spread = _spread(scales.astype(np.float64), scheme.group, width).T
    dead = diagonal == 0
    h = h + np.diag(np.where(dead, max(float(diagonal.mean()), 1.0), 0.0) + damping * diagonal.mean())
    order = np.argsort(-diagonal, kind="stable") if by_activation else np.arange(width)
    upper = np.linalg.cholesky(np.linalg.inv(h[np.ix_(order, order)])).T
    left, transformed = w[order].copy(), spread[order] if spread.shape[0] == width else np.broadcast_to(spread, w.shape)
    qweight = np.empty(w.shape, np.int8)
    for start in range(0, width, _BLOCK):
        stop = min(start + _BLOCK, width)
        errors = np.empty((stop - start, w.shape[1]))
        for i in range(start, stop):
            qweight[order[i]] = code = _quantize(left[i] / transformed[i], scheme)
            errors[i - start] = (left[i] - code * transformed[i]) / upper[i, i]
            left[i:stop] -= np.outer(upper[i, i:stop], errors[i - start])
        left[stop:] -= upper[start:stop, stop:].T @ errors
    return Rounded(np.ascontiguousarray(qweight.T), scales)


class AwqSearch:
    """Factors s [I] for the inputs, W' = Q(s W) / s, with s = mean|x|^a for the a in [0, 1) of least error
    (arXiv:2306.00978, section 3.2); a = 0 is no scaling. One s for all weights [I, O] that see these inputs, each with the
    Hessian of its own share of them, which are added one after another.

    Args:
        means: mean absolute value of each input [I]. grid: how many a are tried.
    """

    def __init__(self, means: Floats, scheme: Scheme, grid: int) -> None:
        self.scheme, self.signal = scheme, 0.0
        self._candidates, self._errors = [self._factors(means, step / grid) for step in range(grid)], [0.0] * grid

    def add(self, w: Floats, h: Floats) -> None:
        """Count the error of a weight."""
        self.signal += error(w, np.zeros_like(w), h)
        for place, s in enumerate(self._candidates):
            wide = s.astype(np.float64)[:, None]
            rounded = nearest(w * wide, self.scheme).dequantize(self.scheme.group) / wide
            self._errors[place] += error(w, rounded, h)

    @property
    def factors(self) -> NDArray[np.float32]:
        """[I]: those of least error."""
        return self._candidates[int(np.argmin(self._errors))]

    @property
    def noise(self) -> float:
        """Σ of the squared error of the outputs with these factors."""
        return min(self._errors)

    @staticmethod
    def _factors(means: Floats, power: float) -> NDArray[np.float32]:
        s = np.maximum(means, 1e-8) ** power
        return np.clip(s / np.sqrt(s.max() * s.min()), 1e-4, 1e4).astype(np.float32)  # type: ignore[no-any-return]


def _scales(w: Floats, scheme: Scheme, importance: Floats | None) -> NDArray[np.float32]:
    """[O, G]; 1 for a group of zeros."""
    group = scheme.group or w.shape[0]
    parts = []
    for start in range(0, w.shape[0], group):
        part = w[start : start + group].T
        largest = np.abs(part).max(axis=1) / _TOP[scheme.quant_dtype]
        largest = np.where(largest == 0, 1.0, largest)
        if importance is not None:
            largest = _searched(part, largest, importance[start : start + group], scheme)
        parts.append(largest.astype(np.float32))
    return np.stack(parts, axis=1)


def _searched(part: Floats, largest: Floats, importance: Floats, scheme: Scheme) -> Floats:
    best = np.full(len(part), np.inf)
    chosen = largest
    for fraction in _FRACTIONS:
        s = (largest * fraction).astype(np.float32).astype(np.float64)[:, None]
        lost = (np.square(part - _quantize(part / s, scheme) * s) * importance).sum(axis=1)
        better = lost < best
        best, chosen = np.where(better, lost, best), np.where(better, s[:, 0], chosen)
    return chosen


def _quantize(ratio: Floats, scheme: Scheme) -> NDArray[np.int8]:
    top = _TOP[scheme.quant_dtype]
    qweight: NDArray[np.int8] = np.clip(np.rint(ratio), -top, top).astype(np.int8)
    return qweight


def _spread(scales: NDArray[Any], group: int, inputs: int) -> NDArray[Any]:
    """[O, G] -> [O, I], or [O, 1] without groups."""
    return np.repeat(scales, group, axis=1)[:, :inputs] if group else scales
