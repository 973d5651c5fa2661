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


#: every library on one thread, the best one also on three, which share no shape evenly: how work is divided among threads is
#: the same code in each library
CASES = [(name, 1) for name in library.LIBRARIES] + [(name, 3) for name in BUILT[:1]]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def kernels(request, monkeypatch):
    """Function name -> kernel, of each library; threads per call also for little work."""
    from ernie_third_party_kernels import tensors

    name, threads = request.param
    if name not in BUILT:
        pytest.skip(f"no library {name} for this processor")
    monkeypatch.setattr(tensors, "FEWEST_ELEMENTS", 0)
    found = {}
    for operator in sorted(native.operators):
        found |= native.load(operator, lambda: threads, name)
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
