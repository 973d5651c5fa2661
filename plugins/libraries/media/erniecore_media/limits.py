"""What an image or a video of others may ask for, and the error that says what was wrong with one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """At most.

    Attributes:
        bytes: of a file, or of what a data URL holds.
        pixels: of a decoded image; 2**26 of them take 192 MiB in RGB.
    """

    bytes: int = 1 << 26
    pixels: int = 1 << 26


@dataclass(frozen=True)
class VideoLimits(Limits):
    """At most, of a video.

    Attributes:
        pixels: of a frame. seconds: as the header tells. frames: in the file.
    """

    bytes: int = 1 << 28
    pixels: int = 1 << 24
    seconds: float = 1800.0
    frames: int = 1 << 17


class MediaError(ValueError):
    """An image or a video that is not read. ``found``, ``expected`` and ``fix`` are short phrases for whoever has the data
    file."""

    def __init__(self, message: str, *, found: str = "", expected: str = "", fix: str = "") -> None:
        super().__init__(message)
        self.message, self.found, self.expected, self.fix = message, found, expected, fix
