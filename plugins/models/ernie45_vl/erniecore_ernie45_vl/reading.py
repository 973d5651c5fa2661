"""How images and videos of rows are read: bytes, hash and patches from headers, pixels. The chat template that uses it is
``seeing.py``; no paddle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from erniecore_media import Limits, MediaError, decode, inspect, read_bytes, upright_size
from erniecore_media.augment import Change, Transform, augment, draw
from PIL import Image

from erniecore.api.data import Draw, Media
from erniecore_ernie45_vl.images import MERGE, Sizing, patches, resized
from erniecore_ernie45_vl.positions import Grid
from erniecore_ernie45_vl.videos import VideoReading

if TYPE_CHECKING:
    from erniecore_ernie45_vl.images import Floats
    from erniecore_ernie45_vl.videos import Frames


@dataclass(frozen=True)
class Reading:
    """How images and videos are read.

    Attributes:
        roots: further directories that they may lie in, besides that of the data file.
        upright: turn images as their EXIF note says. video: None: videos are not read.
        augment: random changes of the images of training rows.
    """

    sizing: Sizing
    limits: Limits
    roots: tuple[str, ...] = ()
    upright: bool = False
    video: VideoReading | None = None
    augment: tuple[Transform, ...] = ()

    def bytes_of(self, source: str, base: str, limits: Limits | None = None) -> bytes:
        """The content of a file or data URL. Raises ``MediaError``."""
        return read_bytes(source, [base or ".", *self.roots], limits or self.limits)

    def parts(self, media: Media) -> list[bytes]:
        """The content of an image, a video, or each frame of a list. Raises ``MediaError``."""
        if media.kind == "video" and self.video is None:
            fix = "leave it out, or train a model that reads videos"
            raise MediaError("the model reads no videos", found=media.source[:80], expected="images", fix=fix)
        if media.frames and self.video is not None:
            return self.video.listed(media.frames, lambda source: self.bytes_of(source, media.base))
        limits = self.video.limits if media.kind == "video" and self.video is not None else None
        return [self.bytes_of(media.source, media.base, limits)]

    def known(self, media: Media, parts: Sequence[bytes]) -> Known:
        """Hash and patches, from headers. Raises ``MediaError``."""
        grid, frames = (
            (self.grid(parts[0]), ())
            if self.video is None or media.kind == "image"
            else self.video.plan(parts, bool(media.frames))
        )
        return Known(digest(parts), grid, frames)

    def drawn(self, media: Media, known: Known, draw_of: Draw | None, position: int, index: int) -> tuple[Change, ...]:
        """The changes of an image: the ``index``-th of the row at ``position`` of its file. None of a video, and none where
        ``draw_of`` is None. Neither the path of a file nor what stands around the row enters."""
        if draw_of is None or not self.augment or media.kind != "image":
            return ()
        return draw(self.augment, f"{draw_of.seed}/{draw_of.epoch}/{position}/{index}/{known.sha256}")

    def values(self, media: Media, known: Known, parts: Sequence[bytes], changes: Sequence[Change] = ()) -> Floats:
        """Patches float32 [N, 3 p p]. Raises ``MediaError``."""
        if self.video is None or media.kind == "image":
            return self.pixels(parts[0], known.grid, changes)
        return self.video.pixels(parts, known.grid, known.frames, bool(media.frames))

    def sizing_of(self, kind: str) -> Sizing:
        """Of an image, or of the frames of a video."""
        return self.video.sizing if kind == "video" and self.video is not None else self.sizing

    def grid(self, data: bytes) -> Grid:
        """Patches of the image, from its header. Raises ``MediaError``."""
        header = inspect(data, self.limits)
        width, height = upright_size(header, data, self.limits) if self.upright else (header.width, header.height)
        try:
            rows, columns = self.sizing.size_of(height, width)
        except ValueError as error:
            raise MediaError(str(error), found=f"{width} x {height}", expected="another size") from error
        return Grid(1, rows // self.sizing.patch, columns // self.sizing.patch)

    def pixels(self, data: bytes, grid: Grid, changes: Sequence[Change] = ()) -> Floats:
        """Patches float32 [N, 3 p p] of the image, changed in its final size. Raises ``MediaError``."""
        image = decode(data, self.limits, upright=self.upright)
        frame = resized(image, (grid.rows * self.sizing.patch, grid.columns * self.sizing.patch))
        if changes:
            frame = np.asarray(augment(Image.fromarray(frame), changes))
        return patches(frame[None], self.sizing)


def digest(parts: Sequence[bytes]) -> str:
    """SHA-256 of a file, or of those of several."""
    each = [hashlib.sha256(part) for part in parts]
    return each[0].hexdigest() if len(each) == 1 else hashlib.sha256(b"".join(h.digest() for h in each)).hexdigest()


class Known(NamedTuple):
    """What rows need of an image or a video; ``frames``: index and seconds of those that the model sees."""

    sha256: str
    grid: Grid
    frames: Frames = ()

    @property
    def tokens(self) -> int:
        """Placeholders that stand for it."""
        return self.grid.merged(MERGE).size
