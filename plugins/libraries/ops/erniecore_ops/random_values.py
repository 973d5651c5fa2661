"""Random numbers that are a function of a key and a position alone: the same in any order, on any number of ranks, in any
slice, on the disk and in memory.

Rule: Philox-4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with the first 16 bytes of BLAKE2b over
the key; counter c gives the 16-bit numbers of positions 16c to 16c + 15, and number i becomes the quantile of the distribution
at (i + 0.5) / 65536. The quantiles of the normal distribution are scaled to a variance of exactly 1, end at 4.3 deviations, and
are computed once in float64: integers and a table, no arithmetic that differs between machines.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from math import prod, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from erniecore_ops.kernels import replaceable

if TYPE_CHECKING:
    from paddle import Tensor

#: values of one counter, and of one task of a thread
_LANES, _TASK = 16, 1 << 20


class Distribution(NamedTuple):
    """``kind``: "normal" (``a`` mean, ``b`` deviation), "uniform" (from ``a`` to ``b``) or "constant" (``a``)."""

    kind: str
    a: float
    b: float = 0.0


def distribution_of(parameter: Tensor) -> Distribution | None:
    """What the initializer of an empty parameter draws from; None for initializers of other kinds."""
    from paddle.nn import initializer as of_paddle

    initializer = parameter._init_func.func.__self__
    if isinstance(initializer, of_paddle.Normal):
        return Distribution("normal", initializer._mean, initializer._std_dev)
    if isinstance(initializer, of_paddle.Constant):
        return Distribution("constant", initializer._value)
    if isinstance(initializer, of_paddle.Uniform):
        return Distribution("uniform", initializer._low, initializer._high)
    if isinstance(initializer, (of_paddle.XavierUniform, of_paddle.XavierNormal)):
        fans = initializer._compute_fans(parameter)
        fan_in, fan_out = initializer._fan_in or fans[0], initializer._fan_out or fans[1]
        deviation = initializer._gain * sqrt(2.0 / (fan_in + fan_out))
        if isinstance(initializer, of_paddle.XavierNormal):
            return Distribution("normal", 0.0, deviation)
        return Distribution("uniform", -sqrt(3.0) * deviation, sqrt(3.0) * deviation)
    return None


def draw(key: str, shape: Sequence[int], table: NDArray[Any], start: int = 0, stop: int | None = None) -> NDArray[Any]:
    """Positions ``start`` to ``stop`` of an array of ``shape``, flat; in that shape where they are all of it.

    Args:
        table: the 65536 values that can come, as :func:`table_of` gives them, in the dtype of the result; or one.
    """
    whole = prod(shape)
    count = (whole if stop is None else stop) - start
    if len(table) == 1:
        found = np.full(count, table[0])
    else:
        number = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=16).digest(), "little")
        found = np.empty(count, table.dtype)
        draw_values(number, table, start, found)
    return found.reshape(shape) if count == whole else found


@replaceable
def draw_values(key: int, table: NDArray[Any], start: int, out: NDArray[Any]) -> None:
    """Fill ``out`` with the values at positions from ``start`` on; ``key``: below 2^128."""
    tasks = range(0, len(out), _TASK)
    if len(tasks) < 2:
        _draw(key, table, start, out)
        return
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        parts = (out[task : task + _TASK] for task in tasks)
        list(threads.map(partial(_draw, key, table), (start + task for task in tasks), parts))


def _draw(key: int, table: NDArray[Any], start: int, out: NDArray[Any]) -> None:
    """Fill ``out`` with the values at positions from ``start`` on."""
    counter, skip = divmod(start, _LANES)
    counters = -(-(skip + len(out)) // _LANES)
    raw = np.random.Philox(counter=counter, key=key).random_raw(4 * counters)
    numbers = raw.astype("<u8", copy=False).view("<u2")[skip : skip + len(out)]
    np.take(table, numbers, out=out, mode="clip")  # no number is outside; another mode would use a buffer


def table_of(chosen: Distribution) -> NDArray[np.float64]:
    """The 65536 values of a distribution in order, float64; of a constant, one."""
    if chosen.kind == "constant":
        return np.array([chosen.a])
    if chosen.kind == "uniform":
        return chosen.a + (chosen.b - chosen.a) * (np.arange(1 << 16) + 0.5) / (1 << 16)
    return chosen.a + chosen.b * _normal()


@lru_cache(maxsize=1)
def _normal() -> NDArray[np.float64]:
    inverse, half = NormalDist().inv_cdf, 1 << 15
    above = np.array([inverse((half + i + 0.5) / (2 * half)) for i in range(half)])
    above /= sqrt(float((above * above).mean()))
    return np.concatenate([-above[::-1], above])
