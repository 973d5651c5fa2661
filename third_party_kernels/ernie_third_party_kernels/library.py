"""The compiled libraries: one per instruction set, of which the best one that this processor can run is loaded. Nothing is
compiled here (``setup.py`` does, when the package is installed) and nothing is loaded at import.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from ernie_third_party_kernels.sources import is_current

FOLDER = Path(__file__).parent

#: library -> flags of /proc/cpuinfo that it needs; best first
LIBRARIES: Mapping[str, frozenset[str]] = {
    "avx512": frozenset({"avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl", "fma"}),
    "avx2": frozenset({"avx2", "fma"}),
    "plain": frozenset(),
}

POINTER, SIZE, NUMBER, COUNT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int


def processor_flags() -> frozenset[str]:
    """What the processor can do, in the words of /proc/cpuinfo; nothing where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def usable(flags: frozenset[str], folder: Path = FOLDER) -> list[str]:
    """Libraries that are there and that a processor with ``flags`` can run, best first."""
    return [name for name, needs in LIBRARIES.items() if needs <= flags and (folder / f"kernels_{name}.so").is_file()]


def fault(folder: Path = FOLDER) -> str:
    """Why no kernel can run here; empty if they can."""
    names = usable(processor_flags(), folder)
    if not names:
        return "the C++ library was not built: no C++ compiler that works was there when the package was installed"
    if not is_current(folder / f"kernels_{names[0]}.so", folder):
        return "the C++ library is older than its sources"
    return ""


@lru_cache(maxsize=8)
def load(name: str = "", openmp: str = "") -> ctypes.CDLL:
    """A library by name, by default the best one.

    Args:
        openmp: the runtime that the process uses already. Two of them would have two sets of threads, and those of one
            would spin while the other works; so the kernels are linked to none and take the one that is there.

    Raises:
        OSError: there is no library that this processor can run, or it is older than its sources, or no OpenMP.
    """
    if reason := fault():
        raise OSError(reason)
    names = usable(processor_flags())
    _share_openmp(openmp)
    return ctypes.CDLL(str(FOLDER / f"kernels_{name or names[0]}.so"))


def _share_openmp(path: str) -> None:
    for name in (path, "libgomp.so.1", "libomp.so.5") if path else ("libgomp.so.1", "libomp.so.5"):
        with suppress(OSError):
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            return


def function(library: ctypes.CDLL, name: str, arguments: list[Any], result: Any = None) -> Callable[..., Any]:
    """A C function with its types; the interpreter lock is free while it runs."""
    found = getattr(library, name)
    found.argtypes, found.restype = arguments, result
    return found  # type: ignore[no-any-return]
