"""Files of a repository into a directory, so that what is interrupted goes on where it stopped, and nothing fills
the disk. Standard library only."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from erniecore_system.files import file_hash

from erniecore.api import CheckpointError
from erniecore.api.installation import free_bytes, size_text

#: bytes that stay free on the disk, whatever a hub sends
RESERVE = 1 << 30


def fetch_parts(files: Iterable[str], directory: Path, fetch: Callable[[str, Path], None]) -> None:
    """Files into a directory, under the lock of who asks. A file that is not whole is `.parts/FILE`.

    Args:
        fetch: (file, part) -> the part has the whole file; it goes on from what the part has.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for file in files:
        target, part = directory / file, directory / ".parts" / quote(file, safe="")
        if not target.is_file():
            part.parent.mkdir(exist_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            fetch(file, part)
            part.replace(target)


class PartFile(io.FileIO):
    """A part, to be written on at its end.

    Args:
        size: bytes that the hub announced; ``None``: it did not say.

    Raises:
        OSError: on a write beyond that size, or where the disk has no room but its reserve.
    """

    def __init__(self, part: Path, size: int | None) -> None:
        super().__init__(part, "ab")
        self._part, self._size = part, size

    def write(self, data: Any) -> int:
        """All of ``data``, or nothing."""
        end = self.tell() + len(data)
        if self._size is not None and end > self._size:
            self.seek(0)
            self.truncate()  # it is not the file that was announced
            raise OSError(errno.EFBIG, f"more bytes than the {self._size} that were announced", str(self._part))
        if (free := free_bytes(self._part.parent)) < len(data) + RESERVE:
            message = f"{size_text(free)} are free, of which {size_text(RESERVE)} stay free"
            raise OSError(errno.ENOSPC, message, str(self._part))
        with memoryview(data) as rest:
            done = 0
            while done < len(rest):
                done += super().write(rest[done:]) or 0
        return done


def check_content(part: Path, sha256: str, where: str) -> None:
    """Raise ``CheckpointError``, and remove the part, where it is not what the hub announced."""
    if file_hash(part) == sha256:
        return
    part.unlink()
    raise CheckpointError(
        "the file is not the one that the hub announced",
        where=where,
        expected=f"sha256 {sha256}",
        fix="repeat the command",
        code="ERN-K002",
    )
