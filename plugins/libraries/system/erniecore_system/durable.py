"""Files that are on the disk once they are written, and that appear whole or not at all. Standard library only.

Only ``os`` calls: every byte that a checkpoint needs passes through these few functions, so that tests can make
each of them fail.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write everything; ``os.write`` may take less than it is given."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[: 1 << 26]) :]


def write_file(path: Path, data: bytes) -> None:
    """A new file with ``data``, on the disk when this returns."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """``path`` holds either its old or its new content, whenever the power fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        write_file(temporary, data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in ``directory`` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
