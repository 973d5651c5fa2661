"""Values of a file into the memory in which they stay: transposed and converted on the way, tile by tile, so that each value is
read once and written once. numpy's own copy of a transposed matrix meets every cache line again for each of its columns, and is
ten times slower where a row has a power of two of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from erniecore_ops.parallel import row_ranges

Array = NDArray[Any]
#: rows of the target and of the source that a tile of a transposed matrix has, and what a row of its buffer has more, so that
#: the values of a column do not fall into one set of the cache
_ROWS, _COLUMNS, _PADDING = 128, 256, 4

#: a part of the source -> its values in the dtype of the target, and whether they are good
Take: TypeAlias = Callable[[Array], tuple[Array, bool]]


def write_values(
    target: Array,
    source: Array,
    take: Take,
    run: Callable[[Callable[[Any], bool], Iterable[Any]], Iterable[bool]] = map,
) -> bool:
    """Overwrite ``target`` with ``source``; whether ``take`` finds all of it good.

    Args:
        target: without gaps. source: of the same shape, with any strides; such as ``stored.T``.
        run: does independent tasks, such as :func:`erniecore_ops.parallel.parallel_map`.
    """
    if source.ndim > 2:
        found = [write_values(into, part, take, run) for into, part in zip(target, source, strict=True)]
        return all(found)
    target, source = np.atleast_2d(target), np.atleast_2d(source)
    rows, columns = source.shape
    if rows > 1 and abs(source.strides[0]) < abs(source.strides[1]):
        tasks = [(start, min(start + _ROWS, rows)) for start in range(0, rows, _ROWS)]
        return all(list(run(partial(_write_turned, target, source, take), tasks)))
    return all(list(run(partial(_write, target, source, take), row_ranges(rows, columns, 1 << 16))))


def _write(target: Array, source: Array, take: Take, rows: tuple[int, int]) -> bool:
    target[slice(*rows)], good = take(source[slice(*rows)])
    return good


def _write_turned(target: Array, source: Array, take: Take, rows: tuple[int, int]) -> bool:
    stored, into, all_good = source[slice(*rows)].T, target[slice(*rows)], True
    buffer = np.empty((_COLUMNS, len(into) + _PADDING), target.dtype)[:, : len(into)]
    for start in range(0, len(stored), _COLUMNS):
        part = stored[start : start + _COLUMNS]
        tile = buffer[: len(part)]
        tile[...], good = take(part)
        into[:, start : start + len(part)] = tile.T
        all_good = all_good and good
    return all_good
