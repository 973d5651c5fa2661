"""Images and videos of data files, read within limits. Imports no paddle."""

from erniecore_media.frames import FrameChoice
from erniecore_media.images import Header, as_png, decode, inspect, to_rgb, upright_size
from erniecore_media.limits import Limits, MediaError, VideoLimits
from erniecore_media.sources import read_bytes
from erniecore_media.timestamps import font_bytes, write_time
from erniecore_media.videos import check_seconds, decode_frames, inspect_video

__all__ = [
    "FrameChoice",
    "Header",
    "Limits",
    "MediaError",
    "VideoLimits",
    "as_png",
    "check_seconds",
    "decode",
    "decode_frames",
    "font_bytes",
    "inspect",
    "inspect_video",
    "read_bytes",
    "to_rgb",
    "upright_size",
    "write_time",
]
