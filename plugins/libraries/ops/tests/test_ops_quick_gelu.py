"""The activation x sigmoid(1.702 x): values and slopes against numpy, what it keeps, other dtypes."""

import gc

import numpy as np
import paddle
import pytest
from erniecore_ops.quick_gelu import quick_gelu
from paddle.base import core


def reference(x, dy):
    s = 1 / (1 + np.exp(-1.702 * x))
    return x * s, dy * (s + 1.702 * x * s * (1 - s))


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 2e-6), ("float64", 1e-12)])
def test_values_and_slopes(dtype, bound):
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((7, 3, 33)) * 4 for _ in range(2))
    given = paddle.to_tensor(x).astype(dtype)
    given.stop_gradient = False
    y = quick_gelu(given)
    assert y.dtype == given.dtype
    assert y.shape == [7, 3, 33]
    y.backward(paddle.to_tensor(dy).astype(dtype))
    value, slope = reference(
        given.astype("float64").numpy(), paddle.to_tensor(dy).astype(dtype).astype("float64").numpy()
    )
    for found, expected in ((y, value), (given.grad, slope)):
        np.testing.assert_allclose(found.astype("float64").numpy(), expected, rtol=bound, atol=bound)
    with paddle.no_grad():
        np.testing.assert_array_equal(quick_gelu(given).astype("float32").numpy(), y.detach().astype("float32").numpy())


def test_its_result_is_all_that_is_new():
    x = paddle.randn([64, 256])
    x.stop_gradient = False
    gc.collect()
    before = core.host_memory_stat_current_value("Allocated", 0)
    y = quick_gelu(x)
    assert core.host_memory_stat_current_value("Allocated", 0) - before == 4 * y.size
