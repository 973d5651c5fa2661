"""Videos from bytes, with PyAV: what the header says, and single frames. Neither files nor addresses that a video names are
opened, only containers and codecs of a list are, and what damaged or lying files do ends in one error.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from erniecore.api import EnvironmentFault, install_command
from erniecore_media.limits import MediaError, VideoLimits

if TYPE_CHECKING:
    from PIL import Image

#: as FFmpeg calls them; containers that only point at other files are none of them
CONTAINERS = ("mov", "mp4", "matroska", "webm", "avi", "mpegts", "mpeg")
CODECS = ("h264", "hevc", "av1", "vp8", "vp9", "mpeg4", "mpeg2video", "mpeg1video", "mjpeg", "ffv1")
_EXPECTED = "MP4, MOV, MKV, WebM, AVI or MPEG"


class VideoHeader(NamedTuple):
    """``rate``: frames per second; ``total``: frames."""

    width: int
    height: int
    total: int
    rate: float


def inspect_video(data: bytes, limits: VideoLimits) -> VideoHeader:
    """What the header says, compared with how many packets of frames there are. Decodes nothing.

    Raises:
        MediaError: no video of :data:`CONTAINERS` and :data:`CODECS`, one beyond the limits, or one whose header tells another
            length than the file has.
        EnvironmentFault: PyAV is missing.
    """
    with _opened(data, limits) as (container, stream):
        rate = float(stream.average_rate or stream.base_rate or 0)
        if rate <= 0:
            raise MediaError("the video does not say how fast its frames follow", found="no frame rate", expected="one")
        told = float(container.duration or 0) / 1e6
        check_seconds(max(told, stream.frames / rate), limits)
        count = _packets(container, stream, limits)
        total = stream.frames or count
        if not total or count > 2 * total + 32 or 2 * count + 32 < total or (told and total / rate > 2 * told + 60):
            found = f"{stream.frames} frames and {told:.1f} seconds in the header, {count} in the file"
            raise MediaError("the video is not as long as it says", found=found, expected="a whole video", fix=_REMUX)
        check_seconds(total / rate, limits)
        return VideoHeader(stream.codec_context.width, stream.codec_context.height, total, rate)


_REMUX = "write it anew: ffmpeg -i VIDEO -c copy NEW.mp4"


def check_seconds(seconds: float, limits: VideoLimits) -> None:
    """Raises ``MediaError`` for a longer video than the limit."""
    if seconds > limits.seconds:
        found, expected = f"{seconds:.1f} seconds", f"at most {limits.seconds:.1f}"
        raise MediaError("the video is too long", found=found, expected=expected, fix="cut it, or raise the limit")


def _packets(container: Any, stream: Any, limits: VideoLimits) -> int:
    count = 0
    for packet in container.demux(stream):
        count += packet.size > 0
        if count > limits.frames:
            found, fix = f"more than {limits.frames}", "cut it, or raise the limit"
            raise MediaError("the video has too many frames", found=found, expected=f"at most {limits.frames}", fix=fix)
    return count


def decode_frames(data: bytes, indices: Sequence[int], limits: VideoLimits) -> Iterator[Image.Image]:
    """The frames ``indices``, which ascend, in RGB; one is in memory at a time.

    Raises:
        MediaError: as :func:`inspect_video`; the video is damaged, ends before one of them, or its frames change their size.
    """
    wanted = iter(indices)
    index = next(wanted, None)
    with _opened(data, limits) as (container, stream):
        size = stream.codec_context.width, stream.codec_context.height
        for place, frame in enumerate(container.decode(stream)):
            if (frame.width, frame.height) != size:
                found = f"{frame.width} x {frame.height}"
                raise MediaError(
                    "the frames of the video change their size", found=found, expected=f"{size[0]} x {size[1]}"
                )
            while index == place:
                yield frame.to_image()
                index = next(wanted, None)
            if index is None:
                return
    raise MediaError(
        "the video ends early", found=f"no frame {index}", expected="as many as its header says", fix=_REMUX
    )


@contextmanager
def _opened(data: bytes, limits: VideoLimits) -> Iterator[tuple[Any, Any]]:
    """(container, its first video stream), the header found good."""
    av = _library()
    options = {"format_whitelist": ",".join(CONTAINERS), "codec_whitelist": ",".join(CODECS), "max_streams": "16"}
    try:
        with av.open(io.BytesIO(data), options=options, metadata_errors="ignore", io_open=_nothing_else) as container:
            stream = next(iter(container.streams.video), None)
            if stream is None:
                raise MediaError("the file has no video", found=container.format.name, expected=_EXPECTED)
            context = stream.codec_context
            if stream.codec.name not in CODECS and stream.codec.canonical_name not in CODECS:
                raise MediaError("the codec is not read", found=stream.codec.name, expected=", ".join(CODECS))
            if not 0 < context.width * context.height <= limits.pixels:
                found = f"{context.width} x {context.height}"
                raise MediaError(
                    "frames of the video are too large", found=found, expected=f"at most {limits.pixels} pixels"
                )
            context.options = {"max_pixels": str(limits.pixels)}
            yield container, stream
    except (MediaError, EnvironmentFault):
        raise
    except (av.FFmpegError, OSError, ValueError, EOFError, OverflowError, MemoryError) as error:
        found = f"{type(error).__name__}: {error}"[:120] if data else "an empty file"
        raise MediaError("not a video that is read, or a damaged one", found=found, expected=_EXPECTED) from error


def _nothing_else(name: str, *rest: Any) -> Any:
    raise MediaError("the video names another file", found=name[:80], expected="a video that is one file")


def _library() -> Any:
    try:
        import av
    except ImportError as error:
        message, wanted = (
            "videos are read with PyAV, which is not installed",
            install_command("av", of="erniecore-media"),
        )
        raise EnvironmentFault(message, found=str(error), next=wanted) from error
    return av
