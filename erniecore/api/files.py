"""Building block: files that somebody else may have written, read within limits. Standard library only."""

from erniecore.files import open_file, parse_json, read_bytes, read_json, read_object, read_text, refuse_links
from erniecore.units import printable

__all__ = [
    "open_file",
    "parse_json",
    "printable",
    "read_bytes",
    "read_json",
    "read_object",
    "read_text",
    "refuse_links",
]
