"""Videos of rows: which frames the model sees, at what times, in what size, and their patches. Decoding is the library's
(``erniecore_media``); no paddle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from erniecore_media import (
    FrameChoice,
    Limits,
    MediaError,
    VideoLimits,
    check_seconds,
    decode,
    decode_frames,
    inspect,
    inspect_video,
    write_time,
)

from erniecore_ernie45_vl.images import Sizing, patches, resized
from erniecore_ernie45_vl.positions import TEMPORAL_MERGE, Grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from erniecore_ernie45_vl.images import Floats

#: (index in the file, seconds) of each frame that the model sees
Frames: TypeAlias = "tuple[tuple[int, float], ...]"


@dataclass(frozen=True)
class VideoReading:
    """How videos are read.

    Attributes:
        sizing: of a frame. choice: which frames. limits: of files, and ``frame_limits`` of frames that are given as images.
        timestamps: write its time into every frame, before it gets its size, with ``font`` (empty: Pillow's own).
    """

    sizing: Sizing
    choice: FrameChoice = field(default_factory=FrameChoice)
    limits: VideoLimits = field(default_factory=VideoLimits)
    frame_limits: Limits = field(default_factory=Limits)
    timestamps: bool = True
    font: str = ""

    def listed(self, sources: Sequence[str], read: Callable[[str], bytes]) -> list[bytes]:
        """The images of a list of frames, together no longer and no larger than a video file may be. Raises ``MediaError``."""
        check_seconds(len(sources) / self.choice.fps, self.limits)
        parts: list[bytes] = []
        left = self.limits.bytes
        for source in sources:
            parts.append(read(source))
            left -= len(parts[-1])
            if left < 0:
                found = f"more than {self.limits.bytes} bytes in {len(parts)} of {len(sources)} frames"
                fix = "name fewer frames, or raise the limit"
                expected = f"at most {self.limits.bytes} bytes"
                raise MediaError("the frames are too large together", found=found, expected=expected, fix=fix)
        return parts

    def plan(self, parts: Sequence[bytes], listed: bool) -> tuple[Grid, Frames]:
        """Patches and frames, from headers; an odd number of frames is made even by the last one.

        Args:
            parts: the file, or the images of a list of frames.
        Raises:
            MediaError: what cannot be read, frames of several sizes, and sizes that the model does not see.
        """
        if listed:
            sizes = {inspect(part, self.frame_limits)[1:3] for part in parts}
            if len(sizes) > 1:
                raise MediaError("the frames have several sizes", found=str(sorted(sizes)), expected="one")
            chosen = (
                self.choice.indices(len(parts), self.choice.fps) if len(parts) > self.choice.most else range(len(parts))
            )
            rate, (width, height) = self.choice.fps, sizes.pop()
        else:
            header = inspect_video(parts[0], self.limits)
            chosen, rate = self.choice.indices(header.total, header.rate), header.rate
            width, height = header.width, header.height
        try:
            rows, columns = self.sizing.size_of(height, width)
        except ValueError as error:
            raise MediaError(str(error), found=f"{width} x {height}", expected="another size") from error
        count = len(chosen) + len(chosen) % TEMPORAL_MERGE
        grid = Grid(count, rows // self.sizing.patch, columns // self.sizing.patch)
        return grid, tuple((index, index / rate) for index in chosen)

    def frames(self, parts: Sequence[bytes], grid: Grid, frames: Frames, listed: bool) -> Iterator[NDArray[np.uint8]]:
        """The frames as the model sees them, uint8 [height, width, 3] in their final size. Raises ``MediaError``."""
        size = grid.rows * self.sizing.patch, grid.columns * self.sizing.patch
        indices = [index for index, _ in frames]
        decoded = (decode(parts[i], self.frame_limits) for i in indices) if listed else None
        for image, (_, seconds) in zip(decoded or decode_frames(parts[0], indices, self.limits), frames, strict=True):
            if self.timestamps:
                write_time(image, seconds, self.font)
            yield resized(image, size)

    def pixels(self, parts: Sequence[bytes], grid: Grid, frames: Frames, listed: bool) -> Floats:
        """Patches float32 [N, 3 p p] of all frames; the last one again where their number is odd. Raises ``MediaError``."""
        seen = list(self.frames(parts, grid, frames, listed))
        seen += seen[-1:] * (grid.frames - len(seen))
        return patches(np.stack(seen), self.sizing)
