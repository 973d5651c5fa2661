"""Building block: files that somebody else may have written, read within limits. Standard library only."""

from erniecore_system.files import (
    cache_home,
    check_links,
    open_file,
    parse_json,
    read_bytes,
    read_json,
    read_object,
    read_text,
)
from erniecore_system.units import printable

__all__ = [
    "cache_home",
    "check_links",
    "open_file",
    "parse_json",
    "printable",
    "read_bytes",
    "read_json",
    "read_object",
    "read_text",
]
