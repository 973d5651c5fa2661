"""Space on the disk, and the operating system's refusals turned into errors with a remedy. What writes is
``erniecore_system.durable``."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from erniecore_errors import CheckpointError
from erniecore_system.units import size_text

#: errno -> (message, fix)
_REMEDIES: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("no space left on the disk", "free space there or choose another `run.out`"),
    errno.EDQUOT: ("the disk quota is used up", "free space there or choose another `run.out`"),
    errno.EFBIG: ("the file size limit is reached", "raise it (`ulimit -f`) or write smaller shards"),
    errno.EIO: ("the disk reports an input/output error", "check the disk (dmesg) and choose another `run.out`"),
    errno.EROFS: ("the file system is read-only", "remount it for writing or choose another `run.out`"),
    errno.EACCES: ("no permission", "change the owner or mode, or choose another directory"),
    errno.EPERM: ("not permitted", "change the owner or mode, or choose another directory"),
}


@contextmanager
def translated(path: Path, doing: str, effect: str = "") -> Iterator[None]:
    """Turn ``OSError`` into ``CheckpointError``: what was being done, where, why, and what to do.

    Args:
        path: what the error names when the operating system does not.
        doing: e.g. ``"saving a checkpoint"``.
        effect: what this means for the user's data, e.g. ``"older checkpoints are untouched"``.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError(str(error)) from error
        message, fix = _REMEDIES.get(error.errno or 0, (error.strerror or str(error), "see the cause"))
        text = f"{message} while {doing}" + (f"; {effect}" if effect else "")
        raise CheckpointError(
            text, where=str(error.filename or path), fix=fix, next=f"df -h {path}", code="ERN-K003"
        ) from error


def existing_parent(path: Path) -> Path:
    """The nearest existing directory at or above ``path``."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write below ``path`` (which need not exist yet)."""
    return shutil.disk_usage(existing_parent(path)).free


def require_space(path: Path, need: int, doing: str) -> None:
    """Raise ``CheckpointError`` unless a fifth more than ``need`` bytes are free below ``path``."""
    free = free_bytes(path)
    if free < need * 1.2:
        raise CheckpointError(
            f"not enough disk space for {doing}; nothing was written",
            where=str(path),
            found=f"{size_text(free)} free",
            expected=f"{size_text(need * 1.2)} ({size_text(need)} and a fifth more)",
            fix="free space there or choose another directory",
            next=f"df -h {existing_parent(path)}",
            code="ERN-K003",
        )
