"""Images of data files, read within limits. Imports no paddle."""

from erniecore_media.images import Header, decode, inspect, to_rgb, upright_size
from erniecore_media.limits import Limits, MediaError
from erniecore_media.sources import read_bytes

__all__ = ["Header", "Limits", "MediaError", "decode", "inspect", "read_bytes", "to_rgb", "upright_size"]
