"""Every compiled library that this processor can run, and Paddle on the CPU."""

from types import SimpleNamespace

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels import library
from ernie_third_party_kernels.kernel_set import native
from ernie_third_party_kernels.packed_weights import reference
from erniecore_ops.functions import QuantizedMatrix

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


@pytest.fixture
def packed(rng):
    """A matrix of packed weights with every code that there is, and what it stands for in float64, [.., outputs, inputs]."""

    def make(quant_dtype, inputs, outputs, group, stack=()):
        rows = outputs if quant_dtype == "int8" else (outputs + 1) // 2
        qweight = rng.integers(-128, 128, (*stack, rows, inputs)).astype(np.int8)
        shape = (*stack, outputs, -(-inputs // group)) if group else (*stack, outputs)
        scales = rng.random(shape).astype(np.float32)
        matrix = QuantizedMatrix(paddle.to_tensor(qweight), paddle.to_tensor(scales), quant_dtype, group, outputs)
        return matrix, reference.dequantize(qweight, scales.astype(np.float64), quant_dtype, group, outputs)

    return make


@pytest.fixture
def routes_of():
    """Routes of parts (expert, first row, row after the last), in order."""

    def make(*parts):
        return SimpleNamespace(experts=[SimpleNamespace(expert=e, rows=slice(a, b)) for e, a, b in parts])

    return make
