"""Image preprocessing for the vision tower: resize, normalize, split into patches. numpy and Pillow; no paddle, no files
of videos: a video is a list of frames that the caller chose.

Letters: F frames, h and w patches, p side of a patch, m patches along a square, N patches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from erniecore_media import to_rgb
from numpy.typing import NDArray
from PIL import Image

from erniecore_ernie45_vl.positions import TEMPORAL_MERGE, Grid

ImageSource: TypeAlias = "Image.Image | str | Path"

Floats: TypeAlias = NDArray[np.float32]
#: patches along a square in every published model
MERGE = 2
#: of an image's longer side to the shorter one; beyond it the image is squeezed
MOST_ASPECT = 200


@dataclass(frozen=True)
class Sizing:
    """How images are brought to size and cut. ``fewest`` and ``most``: pixels of an image, or of a video frame if ``of_video``
    made it. ``by_rows``: patches come row by row, instead of square by square."""

    patch: int = 14
    merge: int = MERGE
    fewest: int = 56 * 56
    most: int = 6177 * 28 * 28
    mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)
    by_rows: bool = False

    @property
    def factor(self) -> int:
        """Sides are multiples of it: a square of patches."""
        return self.patch * self.merge

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """The size that an image gets. Raises ``ValueError`` as :func:`smart_size`."""
        return smart_size(height, width, self)

    def of_video(self) -> Sizing:
        """Frames are smaller than images may be, and larger than they must be."""
        return replace(self, fewest=299 * self.factor**2, most=1196 * self.factor**2)


class Pixels(NamedTuple):
    """Patches float32 [N, 3 p p] of all images, one after the other, and their grids int64 [images, 3]."""

    values: Floats
    grids: NDArray[np.int64]

    @property
    def tokens(self) -> list[int]:
        """How many tokens each image becomes."""
        return [Grid(*map(int, grid)).merged(MERGE).size for grid in self.grids]


def smart_size(height: int, width: int, sizing: Sizing) -> tuple[int, int]:
    """The nearest size with sides that are multiples of ``factor``, and with a number of pixels inside the limits.

    Halves are rounded to even; an image longer than ``MOST_ASPECT`` times its width is squeezed to that.
    Raises ``ValueError`` for an empty image, and where no size is inside the limits.
    """
    factor = sizing.factor
    if min(height, width) < 1:
        raise ValueError(f"an image of {width} x {height} pixels")
    if max(height, width) > MOST_ASPECT * min(height, width):
        short = _nearest(min(height, width), factor)
        height, width = (MOST_ASPECT * short, short) if height > width else (short, MOST_ASPECT * short)
    rows, columns = _nearest(height, factor), _nearest(width, factor)
    if rows * columns > sizing.most:
        shrink = math.sqrt(height * width / sizing.most)
        rows, columns = (max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width))
    elif rows * columns < sizing.fewest:
        grow = math.sqrt(sizing.fewest / (height * width))
        rows, columns = (math.ceil(side * grow / factor) * factor for side in (height, width))
    if not sizing.fewest <= rows * columns <= sizing.most:
        raise ValueError(f"no size between {sizing.fewest} and {sizing.most} pixels is near {width} x {height}")
    return rows, columns


def _nearest(side: float, factor: int) -> int:
    return max(factor, round(side / factor) * factor)


def resized(image: Image.Image, size: tuple[int, int]) -> NDArray[np.uint8]:
    """uint8 [height, width, 3] of ``size``, bicubic."""
    height, width = size
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def patches(frames: NDArray[np.uint8], sizing: Sizing) -> Floats:
    """Frames [F, height, width, 3] -> float32 [N, 3 p p]: squares of patches together if not ``by_rows``, a patch as (channel,
    row, column)."""
    p, m = sizing.patch, 1 if sizing.by_rows else sizing.merge
    count, height, width, channels = frames.shape
    mean, std = (np.array(values, np.float32) for values in (sizing.mean, sizing.std))
    # of each level; multiplied in float64, as the reference does
    levels = ((np.arange(256) * (1 / 255)).astype(np.float32)[:, None] - mean) / std
    values = levels[frames, np.arange(channels)]
    cut = values.reshape(count, height // (p * m), m, p, width // (p * m), m, p, channels)
    ordered = cut.transpose(0, 1, 4, 2, 5, 7, 3, 6)  # square row and column, patch row and column, channel, row, column
    return np.ascontiguousarray(ordered.reshape(-1, channels * p * p))


def frames_of(values: Floats, grid: Grid, sizing: Sizing) -> NDArray[np.uint8]:
    """The reverse of :func:`patches`, exactly: uint8 [F, height, width, 3]."""
    p, m, channels = sizing.patch, 1 if sizing.by_rows else sizing.merge, len(sizing.mean)
    cut = values.reshape(grid.frames, grid.rows // m, grid.columns // m, m, m, channels, p, p)
    frames = cut.transpose(0, 1, 3, 6, 2, 4, 7, 5).reshape(grid.frames, grid.rows * p, grid.columns * p, channels)
    mean, std = (np.array(each, np.float32) for each in (sizing.mean, sizing.std))
    return np.asarray(np.rint((frames * std + mean) * 255), np.uint8)


def read_images(images: Sequence[ImageSource], sizing: Sizing | None = None) -> Pixels:
    """Each image by itself, in its own size.

    Raises ``OSError`` for a file that is no image, ``ValueError`` as :func:`smart_size`."""
    return _joined([([image], sizing or Sizing()) for image in images])


def read_videos(videos: Sequence[Sequence[ImageSource]], sizing: Sizing | None = None) -> Pixels:
    """Each video as its frames, all of the size of the first; the last one is repeated where their number is odd.

    Raises ``ValueError`` for a video without frames or with frames of several sizes."""
    return _joined([(frames, sizing or Sizing().of_video()) for frames in videos], TEMPORAL_MERGE)


def _joined(items: Sequence[tuple[Sequence[ImageSource], Sizing]], multiple: int = 1) -> Pixels:
    if not items:
        raise ValueError("no images")
    parts = [_one(images, sizing, multiple) for images, sizing in items]
    return Pixels(np.concatenate([values for values, _ in parts]), np.array([grid for _, grid in parts], np.int64))


def _one(images: Sequence[ImageSource], sizing: Sizing, multiple: int) -> tuple[Floats, Grid]:
    opened = [to_rgb(_opened(image)) for image in images]
    sizes = {image.size for image in opened}
    if len(sizes) != 1:
        raise ValueError(f"frames of one size are expected, found {sorted(sizes) or 'none'}")
    width, height = sizes.pop()
    size = sizing.size_of(height, width)
    opened += opened[-1:] * (-len(opened) % multiple)
    frames = np.stack([resized(image, size) for image in opened])
    return patches(frames, sizing), Grid(len(opened), size[0] // sizing.patch, size[1] // sizing.patch)


def _opened(image: Any) -> Image.Image:
    opened: Image.Image = Image.open(image) if isinstance(image, (str, Path)) else image
    return opened
