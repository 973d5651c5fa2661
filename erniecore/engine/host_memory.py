"""Giving memory back to the system. Nothing here decides how much is kept while a run computes: the device does."""

from __future__ import annotations

import ctypes
import gc
import platform


def release_freed() -> bool:
    """Return freed blocks of the heap to the system, once; whether the C library can (glibc).

    For moments after which much less is needed than before, such as when weights have been packed: a device may keep freed
    memory in the process, which is faster, and would keep the floating-point weights' share for good.
    """
    gc.collect()
    if platform.libc_ver()[0] != "glibc":
        return False
    return bool(ctypes.CDLL(None).malloc_trim(0))
