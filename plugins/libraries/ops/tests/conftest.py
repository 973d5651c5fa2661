"""Gradients against finite differences, recomputation and thread counts: the same for every operator."""

import numpy as np
import paddle
import pytest
from paddle.distributed.fleet.utils import recompute


@pytest.fixture(autouse=True)
def _each_kernel(each_kernel):
    """Operators keep their rules whatever they run with."""


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def check_gradients(rng):
    """Directional derivatives of ``function`` (float64 arrays -> tensor) by central differences."""

    def check(function, *arrays, step=1e-6, tolerance=1e-7):
        inputs = [paddle.to_tensor(a, stop_gradient=False) for a in arrays]
        y = function(*inputs)
        assert y.dtype == paddle.float64
        cotangent = rng.standard_normal(y.shape)
        y.backward(paddle.to_tensor(cotangent))
        for index, (array, tensor) in enumerate(zip(arrays, inputs, strict=True)):
            direction = rng.standard_normal(array.shape)

            def moved(sign, index=index, direction=direction):
                changed = [a + sign * step * direction if i == index else a for i, a in enumerate(arrays)]
                with paddle.no_grad():
                    return float((function(*map(paddle.to_tensor, changed)).numpy() * cotangent).sum())

            numeric = (moved(1) - moved(-1)) / (2 * step)
            exact = float((tensor.grad.numpy() * direction).sum())
            assert exact == pytest.approx(numeric, rel=tolerance * 10, abs=tolerance * 10), f"input {index}"

    return check


def run_with_gradients(function, arrays, wrap=lambda f, *a: f(*a)):
    inputs = [paddle.to_tensor(a, stop_gradient=False) for a in arrays]
    y = wrap(function, *inputs)
    y.sum().backward() if y.ndim == 0 else (y * y).sum().backward()
    return [y.numpy(), *(x.grad.numpy() for x in inputs)]


@pytest.fixture
def check_same_bits():
    """Twice, recomputed, and on two threads instead of one: always the same bits, in output and gradients."""

    def check(function, *arrays):
        first = run_with_gradients(function, arrays)
        runs = {
            "again": lambda: run_with_gradients(function, arrays),
            "recomputed": lambda: run_with_gradients(
                function, arrays, lambda f, *a: recompute(f, *a, use_reentrant=False)
            ),
        }
        for name, run in runs.items():
            for a, b in zip(first, run(), strict=True):
                assert np.array_equal(a, b), name

    return check


@pytest.fixture
def two_threads(monkeypatch):
    """Two threads per operator, as on a machine with two cores; also for little work."""
    from erniecore_ops import parallel

    monkeypatch.setattr(parallel, "FEWEST_ELEMENTS", 0)
    before = parallel.num_workers()
    paddle.base.core.set_num_threads(2)
    yield
    paddle.base.core.set_num_threads(before)
