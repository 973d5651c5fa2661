"""Rates of a device, measured. Imports paddle when called, after the device has set its environment."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import date

from erniecore.api.measuring import open_device
from erniecore_planner.rates import LARGE, SHAPES, Rate, identity

#: shape [m, k, n] of a product
Shape = tuple[int, int, int]


def measure_matmul(name: str, dtype: str, seconds: float) -> tuple[Rate, list[tuple[Shape, float]]]:
    """The best rate of matrix products over some shapes, and every shape's median rate, operations per second.

    Raises:
        UsageError: the device has no such dtype. DeviceUnavailable: it cannot be opened.
    """
    device = open_device(name, dtype)
    shapes = SHAPES if name == "cpu" else (*SHAPES, *LARGE)
    rows = [(shape, rate_of(product(shape, dtype), shape, seconds)) for shape in shapes]
    shape, flops = max(rows, key=lambda row: row[1])
    machine = identity(device.describe())
    return Rate(name, machine, dtype, flops, shape, date.today().isoformat()), rows


def product(shape: Shape, dtype: str) -> Callable[[], None]:
    """One product of random matrices; returns once the device has done it."""
    import paddle

    m, k, n = shape
    left, right = paddle.randn([m, k]).astype(dtype), paddle.randn([k, n]).astype(dtype)

    def run() -> None:
        float(paddle.matmul(left, right)[0, 0])  # reading one number waits for the device

    return run


def rate_of(run: Callable[[], None], shape: Shape, seconds: float) -> float:
    """Operations per second: the median of single products within the time, after one to warm up."""
    run()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while not times or time.perf_counter() < until:
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    m, k, n = shape
    return 2.0 * m * k * n / statistics.median(times)
