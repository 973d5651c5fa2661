"""Every compiled library that this processor can run, and Paddle on the CPU."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels import library
from ernie_third_party_kernels.kernel_set import native

BUILT = library.usable(library.processor_flags())


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(params=[1, 3], ids=["one-thread", "three-threads"])
def threads(request, monkeypatch):
    """Threads per call, also for little work; three share no shape evenly."""
    from ernie_third_party_kernels import tensors

    monkeypatch.setattr(tensors, "FEWEST_ELEMENTS", 0)
    return request.param


@pytest.fixture(params=library.LIBRARIES)
def kernels(request, threads):
    """Function name -> kernel, of each library."""
    if request.param not in BUILT:
        pytest.skip(f"no library {request.param} for this processor")
    found = {}
    for operator in sorted(native.operators):
        found |= native.load(operator, lambda: threads, request.param)
    return found


@pytest.fixture
def tensor():
    """float32 tensors of arrays."""
    return lambda array: paddle.to_tensor(np.asarray(array, dtype=np.float32))


@pytest.fixture
def slope(rng):
    """Directional derivative of ``function`` (float64 arrays -> array) by central differences, against gradients."""

    def check(function, arrays, gradients, cotangent, step=1e-6):
        for index, (array, gradient) in enumerate(zip(arrays, gradients, strict=True)):
            direction = rng.standard_normal(array.shape)

            def moved(sign, index=index, direction=direction):
                changed = [a + sign * step * direction if i == index else a for i, a in enumerate(arrays)]
                return float((function(*changed) * cotangent).sum())

            assert float((gradient * direction).sum()) == pytest.approx((moved(1) - moved(-1)) / (2 * step), rel=1e-6)

    return check
