"""Images as a pyramid of token maps, and back. A token is a vector of bits; no weights, numpy only.

An image is a map F of patches, G x G tokens of d values in [-1, 1]. Scale by scale, from coarse to fine, the bits of a token are
the signs of what is missing, averaged over the part of the image that the token stands for:

    b_s = sign(pool_s(F - A_s)),    A_{s+1} = A_s + a_s * upsample(b_s),    A_0 = 0

The coarse scales have steps a_s that add up to 3/4, the finest one 1, 1/2, 1/4, … each time that it comes. So after the finest
scale every value is right to less than half the distance of two levels, and decoding, which rounds to the nearest level, is
exact.
Source: the scheme of next-scale prediction (VAR, arXiv:2404.02905) with bitwise tokens (Infinity, arXiv:2412.04431), on pixels.

Letters: G patches of a side, d = patch * patch * 3 values of a patch, s tokens of a side, N tokens of all scales.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Bits: TypeAlias = NDArray[np.int8]
CHANNELS = 3
#: parts of a side of a patch that are read by themselves (``reading.py``) and then merged, the square of it: as in the paper
MERGED = 2
#: what the steps of the coarse scales add up to
COARSE = 0.75


class Pyramid(NamedTuple):
    """The tokens of an image, scale after scale.

    Attributes:
        inputs: float32 [N, d], what is known of the image before the scale of each token, averaged over the token's part.
        bits: int8 [N, d], 1 or -1: what is to be predicted.
    """

    inputs: Floats
    bits: Bits


@dataclass(frozen=True)
class ImageTokens:
    """Sizes of the pyramid.

    Attributes:
        size: pixels of a side. patch: pixels of a side of a patch. levels: values that a channel of a pixel can have.
        scales: tokens of a side; each divides size / patch, which is the last, and may come more than once.
    """

    size: int
    patch: int
    scales: tuple[int, ...]
    levels: int = 2

    @property
    def grid(self) -> int:
        """Patches of a side."""
        return self.size // self.patch

    @property
    def width(self) -> int:
        """Values, and bits, of a token."""
        return self.patch * self.patch * CHANNELS

    @property
    def num_tokens(self) -> int:
        """How many tokens all scales have together."""
        return sum(side * side for side in self.scales)

    def faults(self) -> Iterator[tuple[str, str]]:
        """(field, what is wrong) of sizes with which images would not come back as they were."""
        if self.size % self.patch:
            yield "image_patch", f"does not divide image_size = {self.size}"
        elif not self.scales or self.scales[-1] != self.grid or list(self.scales) != sorted(self.scales):
            yield "image_scales", f"not ascending up to image_size / image_patch = {self.grid}"
        elif any(self.grid % side for side in self.scales):
            yield "image_scales", f"not all of them divide image_size / image_patch = {self.grid}"
        elif self.levels > 2 and 2.0 ** (1 - self.scales.count(self.grid)) * (self.levels - 1) >= 1:
            yield (
                "image_scales",
                f"{self.levels} levels need the finest scale more often than {self.scales.count(self.grid)}",
            )

    def steps(self) -> tuple[float, ...]:
        """How far the bits of each scale move a value."""
        fine = self.scales.count(self.grid)
        coarse = len(self.scales) - fine
        return (*(COARSE / coarse for _ in range(coarse)), *(2.0**-i for i in range(fine)))

    def values(self, pixels: NDArray[np.uint8]) -> Floats:
        """Pixels [size, size, 3] -> patches [G, G, d], each value at the nearest level."""
        level = np.rint(pixels.astype(np.float32) / 255 * (self.levels - 1)) / (self.levels - 1) * 2 - 1
        parts = level.reshape(self.grid, self.patch, self.grid, self.patch, CHANNELS)
        values: Floats = parts.transpose(0, 2, 1, 3, 4).reshape(self.grid, self.grid, self.width).astype(np.float32)
        return values

    def rounded(self, values: Floats) -> Floats:
        """Values at the nearest level."""
        steps = self.levels - 1
        return (np.rint((values.clip(-1, 1) + 1) / 2 * steps) / steps * 2 - 1).astype(np.float32)

    def pixels(self, values: Floats) -> NDArray[np.uint8]:
        """Patches [G, G, d] -> pixels uint8 [size, size, 3]."""
        parts = self.rounded(values).reshape(self.grid, self.grid, self.patch, self.patch, CHANNELS)
        level = parts.transpose(0, 2, 1, 3, 4).reshape(self.size, self.size, CHANNELS)
        found: NDArray[np.uint8] = np.rint((level + 1) / 2 * 255).astype(np.uint8)
        return found

    def encode(self, values: Floats, flips: NDArray[np.bool_] | None = None) -> Pyramid:
        """The pyramid of patches [G, G, d].

        Args:
            flips: bool [N, d]: bits that enter what later scales know with the wrong sign, as a model's mistakes would; the bits
                of later scales then are those that correct them.
        """
        known, inputs, bits, start = np.zeros_like(values), [], [], 0
        for scale, side in enumerate(self.scales):
            inputs.append(self.pooled(known, side))
            found: Any = np.where(self.pooled(values - known, side) > 0, 1, -1).astype(np.int8)
            bits.append(found)
            stop = start + side * side
            taken = found if flips is None else np.where(flips[start:stop], -found, found)
            known, start = self.added(known, scale, taken), stop
        return Pyramid(np.concatenate(inputs), np.concatenate(bits))

    def decode(self, bits: Bits) -> Floats:
        """The patches [G, G, d] that bits [N, d] stand for, not rounded."""
        known, start = self.nothing(), 0
        for scale, side in enumerate(self.scales):
            known, start = self.added(known, scale, bits[start : start + side * side]), start + side * side
        return known

    def nothing(self) -> Floats:
        """What is known before the first scale, [G, G, d]."""
        return np.zeros((self.grid, self.grid, self.width), np.float32)

    def added(self, known: Floats, scale: int, bits: Bits | NDArray[Any]) -> Floats:
        """What is known [G, G, d] with the bits [s * s, d] of a scale."""
        side, step = self.scales[scale], self.steps()[scale]
        repeat = self.grid // side
        moved = bits.reshape(side, side, self.width).astype(np.float32) * np.float32(step)
        found: Floats = known + moved.repeat(repeat, axis=0).repeat(repeat, axis=1)
        return found

    def pooled(self, values: Floats, side: int) -> Floats:
        """Averages [s * s, d] over the parts of an image that tokens of a scale stand for."""
        part = self.grid // side
        means = values.reshape(side, part, side, part, self.width).mean(axis=(1, 3), dtype=np.float32)
        found: Floats = means.reshape(side * side, self.width)
        return found

    def places(self, side: int) -> Floats:
        """Row and column [s * s, 2] of the middle of each token, in patches from the middle of the image."""
        middle = (np.arange(side, dtype=np.float32) + 0.5) * (self.grid / side) - self.grid / 2
        rows, columns = np.meshgrid(middle, middle, indexing="ij")
        return np.stack([rows.ravel(), columns.ravel()], axis=1).astype(np.float32)


def scale_slices(scales: Sequence[int]) -> list[slice]:
    """Where the tokens of each scale are among those of all."""
    ends = np.cumsum([side * side for side in scales]).tolist()
    return [slice(end - side * side, end) for side, end in zip(scales, ends, strict=True)]
