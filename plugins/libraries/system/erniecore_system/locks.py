"""Locks of a directory between processes, such as ``build`` for whoever writes a cache entry and ``use`` for all who read it. The
kernel frees them when a process ends, however it ends. Where the file system has no locks, atomic names alone protect.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Lock:
    """A held lock; let go by ``close``, at the end of a ``with`` block, or with the object."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        """Release the lock; does nothing if it is not held."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def locked(entry: Path, name: str, *, shared: bool = False) -> Lock:
    """Wait for the lock ``name`` of an entry, whose directory is made if need be. Raises ``OSError``."""
    while True:
        entry.mkdir(exist_ok=True)
        path = entry / f"{name}.lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        except OSError:
            return Lock(fd)  # no locks here
        if _same(fd, path):
            return Lock(fd)
        os.close(fd)  # removed while we waited


def try_locked(entry: Path, name: str) -> Lock | None:
    """The lock if nobody holds it, else ``None``."""
    fd = os.open(entry / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return Lock(fd)


def _same(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
