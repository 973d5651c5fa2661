"""Random changes of images that keep their size: what is drawn is a pure function of a key, so that every process, and a run that
is resumed, draws the same. With Pillow and numpy; noise alone needs numbers by pixel.

Geometry (``rotate``, ``shear``, ``scale``, ``crop``, ``perspective``) fills what becomes visible with the mean color of the
image's border, and interpolates bicubically. ``brightness``, ``contrast``, ``saturation`` and ``sharpness`` are factors as in
torchvision's ``ColorJitter`` and ``RandomAdjustSharpness``, ``hue`` is in turns of the color circle. Images are read, so turning,
shearing and perspective cut nothing off; ``crop``, and ``scale`` above 1, do.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

Values: TypeAlias = "tuple[float, ...]"


class Transform(NamedTuple):
    """A change that is made with probability ``p``, its values drawn evenly from ``low`` to ``high``. ``name``: of
    :data:`TRANSFORMS`."""

    name: str
    p: float
    low: float
    high: float


class Change(NamedTuple):
    """A transform of one image with the values that were drawn for it. ``seed``: of what is random by pixel."""

    name: str
    values: Values
    seed: int = 0

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{value:.3g}" for value in self.values)])


def draw(transforms: Sequence[Transform], key: str) -> tuple[Change, ...]:
    """The changes of one image, in order. Whether and how much is drawn for each transform, also where it is not made: another
    ``p`` leaves the values of the others as they are."""
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    random = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
    found = []
    for transform in transforms:
        kind = TRANSFORMS[transform.name]
        chance, *parts = random.random(1 + kind.values).tolist()
        seed = int(random.integers(1 << 62))
        values = tuple(transform.low + part * (transform.high - transform.low) for part in parts)
        if chance < transform.p:
            found.append(Change(transform.name, values, seed))
    return tuple(found)


def augment(image: Image.Image, changes: Sequence[Change]) -> Image.Image:
    """The image with all of them made in order: RGB, of the same size."""
    for change in changes:
        kind = TRANSFORMS[change.name]
        values = (*change.values, change.seed) if kind.by_pixel else change.values
        image = kind.make(image, *values)
    return image


def _border(image: Image.Image) -> tuple[int, ...]:
    """The mean color of the outermost pixels."""
    pixels = np.asarray(image)
    edges = [pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]
    return tuple(int(value) for value in np.concatenate(edges).mean(axis=0).round())


def _moved(image: Image.Image, method: Image.Transform, data: Sequence[float]) -> Image.Image:
    """``data``: from places in the new image to places in the old one."""
    return image.transform(image.size, method, tuple(data), resample=Image.Resampling.BICUBIC, fillcolor=_border(image))


def _rotate(image: Image.Image, degrees: float) -> Image.Image:
    """Counterclockwise, smaller where corners would be cut off otherwise: a line of text stays whole."""
    (width, height), angle = image.size, math.radians(degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    across, down = width * abs(cos) + height * abs(sin), width * abs(sin) + height * abs(cos)
    return _turned(image, min(width / across, height / down), (cos, -sin, sin, cos))


def _shear(image: Image.Image, degrees: float) -> Image.Image:
    """Rows to the side, smaller so that nothing is cut off."""
    slope = math.tan(math.radians(degrees))
    return _turned(image, image.width / (image.width + image.height * abs(slope)), (1, slope, 0, 1))


def _turned(image: Image.Image, fit: float, back: Sequence[float]) -> Image.Image:
    """Its content by a factor ``fit``; ``back``: a matrix of rows from places around the new center to those around the old."""
    x, y = image.width / 2, image.height / 2
    a, b, c, d = (value / fit for value in back)
    return _moved(image, Image.Transform.AFFINE, (a, b, x - a * x - b * y, c, d, y - c * x - d * y))


def _scale(image: Image.Image, factor: float) -> Image.Image:
    return _turned(image, factor, (1, 0, 0, 1))


def _crop(image: Image.Image, left: float, top: float, right: float, bottom: float) -> Image.Image:
    """Shares of the sides; below 0: margins are added."""
    across, down = 1 - left - right, 1 - top - bottom
    return _moved(image, Image.Transform.AFFINE, (across, 0, left * image.width, 0, down, top * image.height))


def _perspective(image: Image.Image, *moves: float) -> Image.Image:
    """``moves``: by how large a share of the sides each corner goes inward, (x, y) of the upper left, upper right, lower right
    and lower left one. The whole image stays visible."""
    width, height = image.size
    old = [(0, 0), (width, 0), (width, height), (0, height)]
    inward = [(1, 1), (-1, 1), (-1, -1), (1, -1)]
    pairs = zip(moves[::2], moves[1::2], strict=True)
    new = [
        (x + a * dx * width, y + b * dy * height) for (x, y), (a, b), (dx, dy) in zip(old, inward, pairs, strict=True)
    ]
    rows, wanted = [], []
    for (x, y), (u, v) in zip(new, old, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        wanted += [u, v]
    return _moved(image, Image.Transform.PERSPECTIVE, np.linalg.solve(np.array(rows, float), np.array(wanted)).tolist())


def _enhanced(kind: Callable[[Image.Image], ImageEnhance._Enhance], image: Image.Image, factor: float) -> Image.Image:
    return kind(image).enhance(factor)


def _hue(image: Image.Image, turns: float) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    moved = Image.fromarray((np.asarray(hue).astype(np.int64) + round(turns * 256)).astype(np.uint8))
    return Image.merge("HSV", (moved, saturation, value)).convert("RGB")


def _blur(image: Image.Image, radius: float) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(radius))


def _noise(image: Image.Image, levels: float, seed: float) -> Image.Image:
    grain = np.random.Generator(np.random.PCG64(int(seed))).standard_normal((image.height, image.width, 3))
    return Image.fromarray(np.clip(np.rint(np.asarray(image) + levels * grain), 0, 255).astype(np.uint8))


def _jpeg(image: Image.Image, quality: float) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=round(quality))
    with Image.open(file) as saved:
        again: Image.Image = saved.convert("RGB")
    return again


def _downscale(image: Image.Image, factor: float) -> Image.Image:
    small = image.resize(
        (max(1, round(image.width * factor)), max(1, round(image.height * factor))), Image.Resampling.BILINEAR
    )
    return small.resize(image.size, Image.Resampling.BICUBIC)


def _grayscale(image: Image.Image) -> Image.Image:
    return image.convert("L").convert("RGB")


def _horizontal_flip(image: Image.Image) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


class _Kind(NamedTuple):
    """``make``: of an image and so many ``values``, and a seed where ``by_pixel``."""

    make: Callable[..., Image.Image]
    values: int = 1
    by_pixel: bool = False


#: by name, what a transform does
TRANSFORMS: Mapping[str, _Kind] = {
    "rotate": _Kind(_rotate),
    "shear": _Kind(_shear),
    "scale": _Kind(_scale),
    "crop": _Kind(_crop, 4),
    "perspective": _Kind(_perspective, 8),
    "brightness": _Kind(partial(_enhanced, ImageEnhance.Brightness)),
    "contrast": _Kind(partial(_enhanced, ImageEnhance.Contrast)),
    "saturation": _Kind(partial(_enhanced, ImageEnhance.Color)),
    "sharpness": _Kind(partial(_enhanced, ImageEnhance.Sharpness)),
    "hue": _Kind(_hue),
    "blur": _Kind(_blur),
    "noise": _Kind(_noise, by_pixel=True),
    "jpeg": _Kind(_jpeg),
    "downscale": _Kind(_downscale),
    "grayscale": _Kind(_grayscale, 0),
    "invert": _Kind(ImageOps.invert, 0),
    "horizontal_flip": _Kind(_horizontal_flip, 0),
}
