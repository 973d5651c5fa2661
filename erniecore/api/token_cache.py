"""Building block of a token cache: sources encoded in chunks, and files that are written atomically. For
``erniecore-token-cache`` and tools that manage the cache; imports numpy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from erniecore_sampler.order import index_dtype
from erniecore_system.durable import replace_file, sync_directory
from erniecore_system.files import file_hash

from erniecore.data.encode import Cached, Chunk, Job, source_chunks
from erniecore.data.encode import run as encode_chunks
from erniecore.data.file_types import FileTypes
from erniecore.data.opening import LIMITS
from erniecore.data.row_statistics import MAX_ERRORS
from erniecore.data.shards import content_of, shards_of, stamp_of
from erniecore.data.splits import user_cache
from erniecore.plugin import RowReaderPlugin

if TYPE_CHECKING:
    from erniecore.types.samples import Array as Array

__all__ = [
    "LIMITS",
    "MAX_ERRORS",
    "Cached",
    "Chunk",
    "Job",
    "content_of",
    "encode_chunks",
    "file_hash",
    "index_dtype",
    "reader_of",
    "replace_file",
    "shards_of",
    "source_chunks",
    "stamp_of",
    "sync_directory",
    "user_cache",
]


def reader_of(file: Path) -> RowReaderPlugin | None:
    """What reads the rows of a file; None where nothing installed does."""
    return FileTypes().of(file).reader
