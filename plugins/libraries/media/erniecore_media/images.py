"""Images from bytes, with Pillow: header, limits, pixels in RGB. What Pillow says of damaged files is one error here."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.GifImagePlugin import GifImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from erniecore_media.limits import Limits, MediaError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.ImageFile import ImageFile

#: formats that are read
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM")
#: those that may hold several images
_MOVING = (GifImageFile, PngImageFile, WebPImageFile)
_EXPECTED = "one of " + ", ".join(FORMATS)
_ORIENTATION, _SIDEWAYS = 0x0112, (5, 6, 7, 8)
#: what Pillow raises for damaged files
_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, OverflowError, struct.error)


class Header(NamedTuple):
    """What the header says. ``turned``: the camera noted that the image is to be turned (EXIF). ``width`` and ``height`` are
    those of the stored image."""

    format: str
    width: int
    height: int
    turned: bool


def inspect(data: bytes, limits: Limits) -> Header:
    """Size and format, without decoding.

    Raises:
        MediaError: no image of :data:`FORMATS`, several images in one file, or more pixels than the limit.
    """
    with _opened(data, limits) as image:
        return Header(str(image.format), *image.size, _orientation(image) != 1)


def decode(data: bytes, limits: Limits, *, upright: bool = False) -> Image.Image:
    """The image in RGB, 8 bits a channel.

    Args:
        upright: turn it as its EXIF note says. Else the note is ignored.

    Raises:
        MediaError: as :func:`inspect`, and for damaged pixels.
    """
    with _opened(data, limits) as image:
        image.load()
        turned = ImageOps.exif_transpose(image) if upright and _orientation(image) != 1 else image
        return to_rgb(turned)


def upright_size(header: Header, data: bytes, limits: Limits) -> tuple[int, int]:
    """(width, height) of the image as :func:`decode` with ``upright`` gives it."""
    with _opened(data, limits) as image:
        sideways = _orientation(image) in _SIDEWAYS
    return (header.height, header.width) if sideways else (header.width, header.height)


def to_rgb(image: Image.Image) -> Image.Image:
    """Three channels of 8 bits. What is transparent becomes white; 16-bit grey is divided by 256."""
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, rgba)
    return image.convert("RGB")


def as_png(image: NDArray[np.uint8]) -> bytes:
    """A PNG file of uint8 [height, width, 3]."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


@contextmanager
def _opened(data: bytes, limits: Limits) -> Iterator[ImageFile]:
    """The image, its header read and found good."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit is ours
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                _check(image, limits)
                yield image
    except MediaError:
        raise
    except UnidentifiedImageError as error:
        raise MediaError("not an image that is read", found=_name(data), expected=_EXPECTED) from error
    except Image.DecompressionBombError as error:
        raise _too_many(str(error), limits) from error
    except _DAMAGED as error:
        found = f"{type(error).__name__}: {error}"
        raise MediaError("the image is damaged", found=found, expected="a whole image file") from error


def _check(image: ImageFile, limits: Limits) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise MediaError("the image is empty", found=f"{width} x {height}", expected="at least one pixel")
    if width * height > limits.pixels:
        raise _too_many(f"{width} x {height}", limits)
    if isinstance(image, _MOVING) and image.is_animated:
        fix = "write the frame that is meant to a file of its own"
        raise MediaError("the file has several images", found=f"a moving {image.format}", expected="one", fix=fix)


def _too_many(found: str, limits: Limits) -> MediaError:
    return MediaError("the image has too many pixels", found=found, expected=f"at most {limits.pixels}")


def _orientation(image: ImageFile) -> int:
    """1: as stored. The EXIF part of a PNG file may stand behind its pixels, which are not read for it."""
    if image.format == "PNG" and "exif" not in image.info:
        return 1
    value = image.getexif().get(_ORIENTATION, 1)
    return value if value in range(1, 9) else 1


def _name(data: bytes) -> str:
    """What the bytes are, for people."""
    start = data[:256].lstrip()
    if data[4:8] == b"ftyp" and data[8:12] in (b"heic", b"heix", b"mif1", b"avif"):
        return "HEIC" if data[8:12] != b"avif" else "AVIF"
    if data[:4] in (b"II*\0", b"MM\0*"):
        return "TIFF"
    if b"<svg" in start or start.startswith(b"<?xml"):
        return "SVG"
    return f"bytes that begin with {data[:8]!r}" if data else "an empty file"
