"""The content of data files, by which checkpoints and caches know them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from erniecore.data.folders import shards_of
from erniecore.durable import file_hash


def content_of(path: Path) -> dict[str, Any]:
    """``path``, ``bytes`` and ``sha256`` of a data file; of a data set directory, over the files of the split.

    Raises ``DataError`` for a directory that holds no data set, ``OSError`` for a file that cannot be read."""
    files = shards_of(path)
    if files == (path,):
        return {"path": str(path), "bytes": path.stat().st_size, "sha256": file_hash(path)}
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\n{file_hash(file)}\n".encode())
    return {"path": str(path), "bytes": sum(f.stat().st_size for f in files), "sha256": digest.hexdigest()}
