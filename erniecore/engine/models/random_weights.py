"""New weights, each a function of (seed, public name, position) alone: the same in any order, on any number of ranks, in any
slice, on the disk and in memory.

Rule: Philox-4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with the first 16 bytes of BLAKE2b over
``"<seed>/<name>"`` as its key; counter c gives the 16-bit numbers of positions 16c to 16c + 15, and number i becomes the
quantile of the distribution at (i + 0.5) / 65536. Positions are those of the public tensor of layout ``pt``, row by row. The
quantiles of the normal distribution are scaled to a variance of exactly 1, end at 4.3 deviations, and are computed once in
float64: integers and a table, no arithmetic that differs between machines.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from math import prod, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import paddle
from paddle.nn import initializer as of_paddle

from erniecore.checkpoint.tensors import LONG_NAMES, Array
from erniecore.checkpoint.tensors import Tensor as StoredTensor
from erniecore.engine import arrays
from erniecore.engine.models.filling import fill, fill_from, is_empty
from erniecore.engine.models.weights import check_maps, convert, place, state_of
from erniecore.engine.seed import derive_seed
from erniecore.errors import PluginError
from erniecore.types.model import StateAdapter, TensorMap

if TYPE_CHECKING:
    from erniecore.types.model import Layer
    from erniecore.types.model import Tensor as PaddleTensor

#: values of one counter, and of one task of a thread
_LANES, _TASK = 16, 1 << 20
_SHORT_NAMES = {long: short for short, long in LONG_NAMES.items()}


class Distribution(NamedTuple):
    """``kind``: "normal" (``a`` mean, ``b`` deviation), "uniform" (from ``a`` to ``b``) or "constant" (``a``)."""

    kind: str
    a: float
    b: float = 0.0


def fill_random(layer: Layer, adapter: StateAdapter, seed: int) -> None:
    """Give every empty parameter of ``layer`` its new values; see :func:`attach_random`."""
    attach_random(layer, adapter, seed)
    fill(layer)


def attach_random(layer: Layer, adapter: StateAdapter, seed: int) -> None:
    """Say that the values of every empty parameter of ``layer`` are new ones, which it gets when it is filled.

    Raises:
        PluginError: the adapter's maps are not the tensors of ``layer``.
    """
    stored = {name: (Path("random"), tensor) for name, tensor in random_tensors(layer, adapter, seed).items()}
    targets = state_of(layer)
    empty = [entry for entry in adapter.maps("pt") if is_empty(targets[entry.name])]
    fill_from(targets, empty, partial(place, stored))


def random_tensors(layer: Layer, adapter: StateAdapter, seed: int, dtype: str = "") -> dict[str, StoredTensor]:
    """Public name (layout ``pt``) -> new values of a model that was built under ``paddle.LazyGuard``, made when they are asked
    for; what the model built with values, such as a buffer, keeps them.

    Args:
        layer: its initializers say how each parameter is distributed. adapter: names and shapes.
        dtype: ``float32``, ``bfloat16`` or ``float16``: values are rounded to it; empty: of the parameters. Tensors that
            must stay float32 do.

    Raises:
        PluginError: the adapter's maps are not the tensors of ``layer``, or it cannot write one whose initializer is not of
            a kind that is known here.
    """
    maps, targets = adapter.maps("pt"), state_of(layer)
    check_maps(maps, targets)
    public: dict[str, StoredTensor] = {}
    for entry in maps:
        target = targets[entry.name]
        wanted = entry.dtype or dtype or arrays.dtype_name(target)
        chosen, make = distribution_of(target), target._init_func if is_empty(target) else None
        for index, (name, shape) in enumerate(zip(entry.sources, entry.source_shapes, strict=True)):
            if name in public:
                raise PluginError("the model plugin's state adapter writes a tensor twice", where=name)
            if chosen:
                load: Callable[[], Array] = partial(values, seed, name, tuple(shape), chosen, wanted)
            else:
                load = partial(_own, target, make, entry, index, wanted, derive_seed(seed, entry.name))
            public[name] = StoredTensor(_SHORT_NAMES[wanted], tuple(shape), load)
    return public


def distribution_of(parameter: PaddleTensor) -> Distribution | None:
    """What the initializer of an empty parameter draws from; None for one with values, and for other initializers."""
    if not is_empty(parameter):
        return None
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


def values(
    seed: int,
    name: str,
    shape: Sequence[int],
    chosen: Distribution,
    dtype: str,
    start: int = 0,
    stop: int | None = None,
) -> Array:
    """Positions ``start`` to ``stop`` of the tensor ``name``, flat; of ``shape`` where that is all of them. Bits for
    bfloat16."""
    table = _table(chosen, dtype)
    whole = prod(shape)
    count = (whole if stop is None else stop) - start
    if chosen.kind == "constant":
        found = np.full(count, table[0])
    else:
        key = int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest(), "little")
        found = np.empty(count, table.dtype)
        tasks = range(0, count, _TASK)
        if len(tasks) < 2:
            _draw(key, table, start, found)
        else:
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
                parts = (found[task : task + _TASK] for task in tasks)
                list(threads.map(partial(_draw, key, table), (start + task for task in tasks), parts))
    return found.reshape(shape) if count == whole else found


def _draw(key: int, table: Array, start: int, out: Array) -> None:
    """Fill ``out`` with the values at positions from ``start`` on."""
    counter, skip = divmod(start, _LANES)
    counters = -(-(skip + len(out)) // _LANES)
    raw = np.random.Philox(counter=counter, key=key).random_raw(4 * counters)
    numbers = raw.astype("<u8", copy=False).view("<u2")[skip : skip + len(out)]
    np.take(table, numbers, out=out, mode="clip")  # no number is outside; another mode would use a buffer


@lru_cache(maxsize=32)
def _table(chosen: Distribution, dtype: str) -> Array:
    """The 65536 values of a distribution in ``dtype``, in order; of a constant, one."""
    if chosen.kind == "constant":
        exact = np.array([chosen.a])
    elif chosen.kind == "uniform":
        exact = chosen.a + (chosen.b - chosen.a) * (np.arange(1 << 16) + 0.5) / (1 << 16)
    else:
        exact = chosen.a + chosen.b * _normal()
    return convert(exact, "float64", dtype, chosen.kind)


@lru_cache(maxsize=1)
def _normal() -> Array:
    inverse, half = NormalDist().inv_cdf, 1 << 15
    above = np.array([inverse((half + i + 0.5) / (2 * half)) for i in range(half)])
    above /= sqrt(float((above * above).mean()))
    return np.concatenate([-above[::-1], above])


def _own(target: PaddleTensor, make: Any, entry: TensorMap, index: int, dtype: str, seed: int) -> Array:
    """One public tensor of a parameter whose values its own initializer ``make`` makes, or that has values (None)."""
    if entry.store is None:
        raise PluginError("the model plugin's state adapter cannot write this tensor", where=entry.name)
    if make is not None and not target._is_initialized():
        before = paddle.get_rng_state()
        paddle.seed(seed)
        make(target, None)
        paddle.set_rng_state(before)
    return entry.store(convert(arrays.to_numpy(target), arrays.dtype_name(target), dtype, entry.name))[index]
