"""Random numbers by position, in numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL, c_uint64
from typing import Any

from numpy.typing import NDArray

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, team

#: entries of a table
ENTRIES = 1 << 16
_WORD = (1 << 64) - 1


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """Kernels that replace ``draw_values`` of ``erniecore_ops``."""
    arguments = [c_uint64, c_uint64, COUNT, POINTER, SIZE, SIZE, POINTER, COUNT]
    draw_ = function(library, "draw_positions", arguments)

    def draw_values(key: int, table: NDArray[Any], start: int, out: NDArray[Any]) -> None:
        words, place = (key & _WORD, key >> 64), (table.ctypes.data, start, len(out), out.ctypes.data)
        draw_(*words, int(table.itemsize == 4), *place, team(threads, len(out)))

    return {"draw_values": Kernel(draw_values, _supports)}


def _supports(key: int, table: NDArray[Any], start: int, out: NDArray[Any]) -> bool:
    known = table.shape == (ENTRIES,) and table.itemsize in (2, 4) and out.ndim == 1 and out.dtype == table.dtype
    whole = known and table.flags.c_contiguous and out.flags.c_contiguous
    return whole and start >= 0 and start + len(out) < 1 << 63 and 0 <= key < 1 << 128
