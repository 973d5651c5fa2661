"""The time of a frame, written into its upper left corner: black with a white outline, a tenth of the shorter side high."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import ImageDraw, ImageFont

from erniecore.api import EnvironmentFault

if TYPE_CHECKING:
    from PIL import Image


def time_text(seconds: float) -> str:
    """The time as published inference writes it, ``time: HH:MM:SS.ss``."""
    minutes, rest = divmod(seconds, 60)
    return f"time: {int(minutes) // 60:02d}:{int(minutes) % 60:02d}:{rest:05.2f}"


def write_time(image: Image.Image, seconds: float, font: str = "") -> None:
    """Write the time into ``image``; nothing into one whose shorter side has fewer than 10 pixels.

    Args:
        font: path of a TrueType font. Empty: the one that Pillow brings (Aileron, CC0), the same on every machine.
    Raises:
        EnvironmentFault: the font cannot be read.
    """
    size = min(image.size) // 10
    if size:
        black, white = (0, 0, 0), (255, 255, 255)
        place = ImageDraw.Draw(image)
        text, face = time_text(seconds), _font(font, size)
        place.text((0, 0), text, font=face, fill=black, stroke_width=size // 10, stroke_fill=white)


def font_bytes(font: str = "") -> bytes:
    """The file of the font that :func:`write_time` takes. Raises ``EnvironmentFault`` as that does."""
    face = _font(font, 10)
    if font:
        return Path(font).read_bytes()
    return bytes(face.font_bytes)


@lru_cache(maxsize=16)
def _font(path: str, size: int) -> ImageFont.FreeTypeFont:
    try:
        found = ImageFont.truetype(path, size) if path else ImageFont.load_default(size)
    except (OSError, ImportError) as error:
        fix = "name a TrueType file, such as Roboto-Regular.ttf, or leave model.video_font empty"
        raise EnvironmentFault("the font cannot be read", where=path or "Pillow", found=str(error), fix=fix) from error
    if not isinstance(found, ImageFont.FreeTypeFont):
        fix = "install a Pillow that was built with FreeType, as those of PyPI are"
        raise EnvironmentFault("Pillow cannot write with TrueType fonts", where="Pillow", fix=fix)
    return found
