"""The 2.06-bit code in numpy: a byte for four weights. No layers, no paddle.

Four inputs of one output are a byte z, which two numbers per output spread to a code of 15 bits, four windows of six bits
that overlap by three; 64 inputs share a scale of four bits:

    c  = floor(z · code_scale + code_zp + 0.5)
    W' = (window - 32) · local · super             windows of c at the shifts 9, 6, 3, 0; super: float32, one per output

Scales of two groups share a byte, the first in its high half. 2 + 4/64 bits per weight, and 12 bytes per output.

Source of the layout: CCQ (arXiv:2507.07145) and the open decoder of FastDeploy, row for row. Its authors fit code_scale and
code_zp to each output; how they search them is not published. Ours are the same for all outputs, the best for normal weights
of those that ``python -m benchmarks.ccq`` tries, and stored per output all the same; c is exact in float32 with them, with
or without a fused multiply-add. As with ``words``, these arrays are not claimed to load anywhere else.

Letters: I inputs, O outputs, G groups of 64 inputs, V four weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

GROUP, EACH = 64, 4
SHIFTS = (9, 6, 3, 0)
#: multiples of 1/16, so that z · CODE_SCALE + CODE_ZP needs less than the 24 bits that float32 has
CODE_SCALE, CODE_ZP = 120.9375, 604.5
#: the best scale of normal weights of size 1
_USUAL = 0.0625
#: shares of the usual scale that are tried
_TRIED = (0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
#: times that the super scales are fitted to the codes
_FITS = 1
#: outputs that are searched at a time, so that about this many distances exist
_DISTANCES = 1 << 21

Floats: TypeAlias = NDArray[np.float32]
Bytes: TypeAlias = NDArray[np.uint8]


class Clusters(NamedTuple):
    """``quant_weight`` uint8 [16 G, O]; ``weight_scale`` uint8 [ceil(G / 2), O]; the others float32 [O]."""

    quant_weight: Bytes
    weight_scale: Bytes
    super_scale: Floats
    code_scale: Floats
    code_zp: Floats


def vectors(code_scale: float, code_zp: float) -> Floats:
    """window - 32 of every byte: [256, 4]."""
    z = np.arange(256, dtype=np.float32)
    code = np.floor(z * np.float32(code_scale) + np.float32(code_zp) + np.float32(0.5)).astype(np.int64)
    return np.stack([(code >> shift) & 63 for shift in SHIFTS], axis=1).astype(np.float32) - 32


def encode(weight: Floats) -> Clusters:
    """A weight [I, O] of finite values. Each byte is the nearest of 256 for its scale, each scale the best of some; a group of
    zeros has scale 0. What a last group lacks counts nothing."""
    inputs, outputs = weight.shape
    groups = -(-inputs // GROUP)
    padded = np.zeros((groups * GROUP, outputs), np.float32)
    padded[:inputs] = weight
    counts = np.zeros(groups * GROUP, np.float32)
    counts[:inputs] = 1
    counts = counts.reshape(groups, GROUP // EACH, EACH)
    step = max(1, _DISTANCES // (256 * 16 * groups or 1))
    parts = [
        _encode(padded[:, start : start + step].T.reshape(-1, groups, GROUP // EACH, EACH), counts)
        for start in range(0, outputs, step)
    ]
    z, local, super_scales = (np.concatenate(found) for found in zip(*parts, strict=True))
    even = np.pad(local, [(0, 0), (0, groups % 2)]).reshape(outputs, -1, 2)
    pairs = (even[..., 0] << 4 | even[..., 1]).astype(np.uint8)
    book = [np.full(outputs, value, np.float32) for value in (CODE_SCALE, CODE_ZP)]
    return Clusters(np.ascontiguousarray(z.reshape(outputs, -1).T), np.ascontiguousarray(pairs.T), super_scales, *book)


def decode(stored: Clusters, inputs: int) -> Floats:
    """The dequantized weight W' [I, O]."""
    outputs = stored.quant_weight.shape[1]
    code = np.floor(stored.quant_weight.astype(np.float32) * stored.code_scale + stored.code_zp + np.float32(0.5))
    windows = np.stack([(code.astype(np.int64) >> shift) & 63 for shift in SHIFTS], axis=1).reshape(-1, GROUP, outputs)
    local = np.stack([stored.weight_scale >> 4, stored.weight_scale & 15], axis=1).reshape(-1, 1, outputs)
    scales = local[: len(windows)].astype(np.float32) * stored.super_scale
    found: Floats = ((windows.astype(np.float32) - 32) * scales).reshape(-1, outputs)[:inputs]
    return found


def _encode(w: Floats, counts: Floats) -> tuple[Bytes, Bytes, Floats]:
    """z [o, G, V], local scales [o, G] and super scales [o] of w [o, G, V, 4]."""
    book = vectors(CODE_SCALE, CODE_ZP)
    size = np.abs(w).max(axis=(1, 2, 3))
    size[size == 0] = 1
    w = w / size.reshape(-1, 1, 1, 1)  # so that squares of any weight are in range
    ideal = _USUAL * np.sqrt(np.square(w).sum(axis=(2, 3)) / counts.sum(axis=(1, 2)))
    supers = (ideal.max(axis=1) / 12).astype(np.float32)
    supers[supers == 0] = 1
    z, local = _search(w, counts, ideal, supers, book)
    for _ in range(_FITS):
        q = book[z] * local[..., None, None]
        top, bottom = ((counts * a * q).sum(axis=(1, 2, 3)) for a in (w, q))
        supers = np.where((top > 0) & (bottom > 0), top / np.where(bottom > 0, bottom, 1), supers).astype(np.float32)
        z, local = _search(w, counts, ideal, supers, book)
    return z.astype(np.uint8), local.astype(np.uint8), (supers * size).astype(np.float32)


def _search(w: Floats, counts: Floats, ideal: Floats, supers: Floats, book: Floats) -> tuple[Any, Any]:
    """The best local scale of those around the ideal one, and the nearest bytes under it; 0 for a group of zeros."""
    masked = counts * w
    dots = masked @ book.T
    squares = (counts @ np.square(book).T)[None]
    best = np.full(ideal.shape, np.inf, np.float32)
    chosen = np.zeros(w.shape[:3], np.int64), np.zeros(ideal.shape, np.int64)
    for share in _TRIED:
        local = np.clip(np.rint(ideal * share / supers[:, None]), 1, 15)
        s = (local * supers[:, None]).astype(np.float32)[..., None, None]
        lost = s * (s * squares - 2 * dots)
        z = lost.argmin(axis=-1)
        cost = np.take_along_axis(lost, z[..., None], axis=-1).sum(axis=(2, 3))
        better = cost < best
        best = np.where(better, cost, best)
        chosen = np.where(better[..., None], z, chosen[0]), np.where(better, local, chosen[1]).astype(np.int64)
    none = (best >= 0) | (ideal == 0)
    return np.where(none[..., None], 0, chosen[0]), np.where(none, 0, chosen[1])
