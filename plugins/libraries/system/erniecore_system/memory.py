"""What is left of the machine's memory, by the machine itself and by the limits of the container; giving freed memory back."""

from __future__ import annotations

import ctypes
import gc
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

#: share of the memory, or of the container's limit, below which it is nearly used up; seconds between two looks
LEAST, EVERY = 0.03, 5.0
#: files of a control group (version 2, version 1): its limit, what it uses, what of that is cache that can be dropped
_GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
#: parameters of mallopt (malloc.h)
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
#: bytes of blocks up to which freed ones are kept; older glibc refuses an mmap threshold above half of a heap
_KEEP, _KEEP_OLD_GLIBC = 1 << 30, 32 << 20
#: no end of the heap is so large that it goes back
_NEVER = -1
#: whether this process keeps freed memory
_keeping = False


class HostMemory(NamedTuple):
    """Bytes.

    Attributes:
        total: of the machine. available: what a process could still get without swapping, by the machine and by every limit.
        limit: the lowest limit of the control groups that this process is in (a container's); None without one.
    """

    total: int
    available: int
    limit: int | None


def host_memory(root: Path = Path("/")) -> HostMemory | None:
    """What this process may still use; None where the system does not say (no ``/proc/meminfo``)."""
    facts = _fields(root / "proc/meminfo")
    if "MemTotal:" not in facts:
        return None
    total, available, limit = facts["MemTotal:"] << 10, facts.get("MemAvailable:", 0) << 10, None
    for group in _groups(root):
        for most, used, cache in _GROUP_FILES:
            capped = _number(group / most)
            if capped is not None and capped < total:
                limit = capped if limit is None else min(limit, capped)
                left = capped - (_number(group / used) or 0) + _fields(group / "memory.stat").get(cache, 0)
                available = max(0, min(available, left))
    return HostMemory(total, available, limit)


def _groups(root: Path) -> Iterator[Path]:
    """Directories of the control groups of this process, and of those above them, whose limits hold as well."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            base = root / "sys/fs/cgroup" / ("memory" if controllers else "")
            inside = PurePosixPath(name.lstrip("/"))
            yield from (base / part for part in (inside, *inside.parents))


def _number(path: Path) -> int | None:
    """The number in a file; None for ``max``, and where there is no such file."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _fields(path: Path) -> dict[str, int]:
    """``name number …`` lines of a file; empty where there is none."""
    with suppress(OSError):
        lines = (line.split() for line in path.read_text().splitlines())
        return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
    return {}


class MemoryWatch:
    """Notices that memory is nearly used up while that can still be said: the system ends a process without a word.

    It looks every few seconds and warns once, and again after there was enough in between.

    Args:
        warn: told how many bytes are left, and of how many. look: what is left; None where the system does not say.
    """

    def __init__(
        self,
        warn: Callable[[int, int], None],
        look: Callable[[], HostMemory | None] = host_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._warn, self._look, self._clock = warn, look, clock
        self._next, self._low = 0.0, False

    def step(self) -> None:
        """Look, where it is time to."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + EVERY
        memory = self._look()
        if memory is None:
            return
        whole = memory.limit or memory.total
        low = memory.available < LEAST * whole
        if low and not self._low:
            self._warn(memory.available, whole)
        self._low = low


def keep_freed_memory() -> bool:
    """Make glibc keep freed blocks instead of returning every large one to the kernel; whether it did.

    Without it each large tensor is a fresh mapping whose pages must be faulted in, and the end of the heap, such as a step's
    gradients, goes back and comes again with every step. The peak is the same. Other C libraries are left alone.
    """
    global _keeping
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    done = mallopt(_M_MMAP_THRESHOLD, _KEEP) or mallopt(_M_MMAP_THRESHOLD, _KEEP_OLD_GLIBC)
    # one arena: blocks that a worker thread gets would otherwise be mapped and unmapped every time
    done = done and mallopt(_M_ARENA_MAX, 1)
    _keeping = bool(done and mallopt(_M_TRIM_THRESHOLD, _NEVER) and mallopt(_M_TOP_PAD, 64 << 20))
    return _keeping


def release_freed(*, collect: bool = True) -> bool:
    """Return freed blocks of the heap to the system, once; whether the C library can (glibc).

    For moments after which much less is needed than before, such as when weights have been packed: a device may keep freed
    memory in the process, which is faster, and would keep the floating-point weights' share for good.

    Args:
        collect: free what only circles of references hold first, which takes tenths of a second.
    """
    if collect:
        gc.collect()
    if platform.libc_ver()[0] != "glibc":
        return False
    return bool(ctypes.CDLL(None).malloc_trim(0))


def return_blocks(least: int) -> bool:
    """From now on, return freed blocks of at least ``least`` bytes to the system where :func:`keep_freed_memory` keeps them;
    whether that changed. A process that keeps nothing returns large blocks anyway.

    A heap keeps what is freed, and what is smaller is cut from it: of a large block that comes again and again, such as a head
    that is gathered for every pass, it would hold more than one.
    """
    return _keeping and bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, least))
