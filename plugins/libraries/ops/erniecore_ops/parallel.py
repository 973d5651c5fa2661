"""A few worker threads for independent slices of one operator. Not a scheduler, and not for input or output.

Most elementwise kernels of Paddle's CPU build use one core and release the interpreter lock while they run, so
slices of one tensor can be worked on at the same time. What is computed in a slice never depends on the number of
threads: results are the same bits with one thread and with many.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import current_thread
from typing import Any, TypeVar

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Waking workers takes as long as a few operations on this many elements.
FEWEST_ELEMENTS = 1 << 14

_NAME = "erniecore-op"
_executors: dict[tuple[int, int], ThreadPoolExecutor] = {}


def parallel_map(
    function: Callable[[Item], Result], items: Iterable[Item], like: Tensor | NDArray[Any]
) -> list[Result]:
    """``[function(item) for item in items]``, on worker threads where that helps.

    ``function`` must only use detached tensors (a worker has its own gradient mode) and write to slices that no
    other item touches. ``like`` is a tensor or an array of the work: threads are for those in host memory that are large
    enough.
    """
    work = list(items)
    small = len(work) < 2 or like.size < FEWEST_ELEMENTS
    size = 1 if small or _inside_worker() or not _on_host(like) else num_workers()
    return [function(item) for item in work] if size < 2 else _shared_out(function, work, size)


def _shared_out(function: Callable[[Item], Result], work: list[Item], size: int) -> list[Result]:
    """Each worker takes the next item until none is left: one hand-over per worker, not one per item."""
    numbers = iter(range(len(work)))  # next() of a range iterator is one step of the interpreter
    results: dict[int, Result] = {}

    def take() -> None:
        for number in numbers:
            results[number] = function(work[number])

    tasks = [_executor(size).submit(take) for _ in range(min(size, len(work)))]
    for task in tasks:
        task.result()
    return [results[number] for number in range(len(work))]


def row_ranges(num_rows: int, row_elements: int, target: int = 1 << 18) -> list[tuple[int, int]]:
    """Cut rows into pieces of about ``target`` elements, which stay in a core's cache."""
    step = max(1, target // max(1, row_elements))
    return [(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]


def memory_of(tensor: Tensor) -> NDArray[np.generic]:
    """The memory of ``tensor``, which has no gradient and is in the memory of the host; of bfloat16 its bits, uint16."""
    if tensor.dtype == paddle.bfloat16:  # numpy has no such type
        return np.from_dlpack(tensor.view("int16")).view(np.uint16)
    array: NDArray[np.generic] = np.from_dlpack(tensor)
    return array


def num_workers() -> int:
    """Threads that matrix products use (``OMP_NUM_THREADS``, or what the device has set since); 1 if unknown."""
    library = _library("libmklml_intel.so")
    return 1 if library is None else int(library.MKL_Get_Max_Threads())


def _on_host(like: Tensor | NDArray[Any]) -> bool:
    return isinstance(like, np.ndarray) or bool(like.place.is_cpu_place())


def _inside_worker() -> bool:
    return current_thread().name.startswith(_NAME)


def _executor(size: int) -> ThreadPoolExecutor:
    """The pool of this process; a forked child gets its own, because threads do not survive a fork."""
    key = os.getpid(), size
    if key not in _executors:
        _executors.clear()
        turn = itertools.count()
        _executors[key] = ThreadPoolExecutor(
            size, thread_name_prefix=_NAME, initializer=lambda: _one_core_each(next(turn))
        )
    return _executors[key]


def _one_core_each(index: int) -> None:
    """Bind worker number ``index`` to a core, and its matrix products to that core: tasks are too short for the
    kernel to spread workers that wake up on one core, and other cores belong to the other workers."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        with suppress(OSError):
            os.sched_setaffinity(0, {cores[index % len(cores)]})
    openmp, mkl = _library("libiomp5.so"), _library("libmklml_intel.so")
    if openmp is not None:
        openmp.omp_set_num_threads(1)
    if mkl is not None:
        mkl.MKL_Set_Num_Threads_Local(1)


@lru_cache(maxsize=4)
def _library(name: str) -> ctypes.PyDLL | None:
    """A library that came with Paddle's wheel; ``None`` where the wheel was built without it."""
    try:
        return ctypes.PyDLL(str(Path(paddle.__file__).parent / "libs" / name))
    except OSError:
        return None
