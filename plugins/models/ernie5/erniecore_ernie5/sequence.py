"""Texts, images and audio as one sequence of tokens, with what the model must know of each. numpy only.

* Text: a token per id.
* An image: its start token, for an image that is to be drawn the tokens of all scales, then the image itself once more as it is
  to be read (the patches of the finest scale), then the end token. The tokens of a scale are a group: they attend to each other
  and to all before them, and are predicted at once; so are those that are read.
* Audio: its start token, one token per frame, the end token. A frame is predicted by the token before it, code by code.

Positions are on three axes, time, height and width: equal for text and audio; of an image the time is that of its scale, and rows
and columns are counted from the middle.

Letters: n tokens, d values of a patch, L codes of a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from erniecore_ernie5.audio_tokens import AudioTokens, Codes
from erniecore_ernie5.image_tokens import Bits, Floats, ImageTokens

Ints: TypeAlias = NDArray[np.int64]
#: kinds of tokens: text and start and end tokens; of an image that is drawn; of one that is read; a frame of audio
TEXT, DRAWN, READ, FRAME = range(4)
#: kinds together as modalities, for statistics of routers
MODALITIES = {"text": (TEXT,), "image": (DRAWN, READ), "audio": (FRAME,)}


class Tokens(NamedTuple):
    """Tokens with their fields.

    Attributes:
        ids: int64 [n]; those of images and frames are of no account.
        learned: bool [n], whether the token before is to predict this one as text.
        kinds: int8 [n]. joined: int8 [n], 1 where a token is of the group of the one before it.
        scales: int8 [n], which scale of the image; that behind the last at what is read.
        axes: float32 [n, 3], time, height and width.
        values: float32 [n, d], of a token of an image. bits: int8 [n, d], what a token that is drawn is to predict, 1 or -1;
            else 0.
        codes: int16 [n, L], of a frame, counted from 1; 0: none. next_codes: those that the token is to predict.
    """

    ids: Ints
    learned: NDArray[np.bool_]
    kinds: NDArray[np.int8]
    joined: NDArray[np.int8]
    scales: NDArray[np.int8]
    axes: Floats
    values: Floats
    bits: Bits
    codes: Codes
    next_codes: Codes

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return len(self.ids)

    @property
    def fields(self) -> dict[str, NDArray[np.generic]]:
        """What the model must know beyond ids, by the names of its inputs, and ``bits``."""
        return {name: getattr(self, name) for name in FIELDS}


#: the fields of a sample
FIELDS = ("kinds", "joined", "scales", "axes", "values", "bits", "codes", "next_codes")


class Markers(NamedTuple):
    """Ids of the tokens before and behind images and audio."""

    image_start: int
    image_end: int
    audio_start: int
    audio_end: int


@dataclass(frozen=True)
class MediaTokens:
    """How images and audio become tokens of a model: what its tokenizer knows beside text."""

    image: ImageTokens
    audio: AudioTokens
    markers: Markers

    @property
    def end_code(self) -> int:
        """In ``next_codes`` of the first level: there are no more frames."""
        return self.audio.num_codes + 1

    def text(self, ids: Sequence[int] | Ints, start: float, *, learned: bool) -> Tokens:
        """Tokens of text from position ``start`` on."""
        return self.plain(len(ids), start)._replace(
            ids=np.asarray(ids, np.int64), learned=np.full(len(ids), learned, np.bool_)
        )

    def plain(self, count: int, start: float = 0.0) -> Tokens:
        """Text tokens of id 0 that nobody learns."""
        positions = start + np.arange(count, dtype=np.float32)
        return Tokens(
            ids=np.zeros(count, np.int64),
            learned=np.zeros(count, np.bool_),
            kinds=np.full(count, TEXT, np.int8),
            joined=np.zeros(count, np.int8),
            scales=np.zeros(count, np.int8),
            axes=np.repeat(positions[:, None], 3, axis=1),
            values=np.zeros((count, self.image.width), np.float32),
            bits=np.zeros((count, self.image.width), np.int8),
            codes=np.zeros((count, self.audio.levels), np.int16),
            next_codes=np.zeros((count, self.audio.levels), np.int16),
        )

    def group(self, scale: int, values: Floats, start: float, bits: Bits | None = None) -> Tokens:
        """The tokens of a scale, or with the number behind the last those of an image that is read; ``values``: [s * s, d].
        ``start``: position of the image's first scale."""
        sides = (*self.image.scales, self.image.grid)
        count, time = sides[scale] ** 2, start + scale
        axes = np.full((count, 3), time, np.float32)
        axes[:, 1:] = start + self.image.places(sides[scale])
        tokens = self.plain(count)
        is_read = scale == len(self.image.scales)
        return tokens._replace(
            kinds=np.full(count, READ if is_read else DRAWN, np.int8),
            joined=(np.arange(count) > 0).astype(np.int8),
            scales=np.full(count, scale, np.int8),
            axes=axes,
            values=values,
            bits=tokens.bits if bits is None else bits,
        )

    def drawn(self, values: Floats, start: float, flips: NDArray[np.bool_] | None = None) -> list[Tokens]:
        """The groups of all scales of an image [G, G, d]; see ``ImageTokens.encode`` for ``flips``."""
        pyramid, groups, at = self.image.encode(values, flips), [], 0
        for scale, side in enumerate(self.image.scales):
            where = slice(at, at + side * side)
            groups.append(self.group(scale, pyramid.inputs[where], start, pyramid.bits[where]))
            at += side * side
        return groups

    def read(self, values: Floats, start: float) -> Tokens:
        """The image [G, G, d] as it is read."""
        return self.group(len(self.image.scales), values.reshape(-1, self.image.width), start)

    def after_image(self, start: float) -> float:
        """The position behind an image whose first scale has the position ``start``."""
        return start + len(self.image.scales) + 1

    def frames(self, codes: Codes, start: float) -> Tokens:
        """Frames [T, L]; what they are to predict is the caller's matter."""
        tokens = self.plain(len(codes), start)
        return tokens._replace(kinds=np.full(len(codes), FRAME, np.int8), codes=(codes + 1).astype(np.int16))


def joined(parts: Sequence[Tokens]) -> Tokens:
    """The parts, one after the other."""
    return Tokens(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
