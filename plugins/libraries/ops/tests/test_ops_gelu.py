"""GELU and its approximations: values and slopes against numpy, what they keep, other dtypes."""

import gc
from functools import partial

import numpy as np
import paddle
import pytest
from ernie_third_party_kernels.gelu import reference
from erniecore_ops import functions as ops
from erniecore_ops.kernels import in_use
from paddle.base import core

VARIANTS = {"erf": ops.gelu, "tanh": partial(ops.gelu, approximate=True), "quick": ops.quick_gelu}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 2e-6), ("float64", 1e-12)])
def test_values_and_slopes(rng, variant, dtype, bound):
    if (variant, dtype) == ("tanh", "float32") and "gelu_forward" not in in_use():
        bound = 3e-5  # Paddle's own tanh is that far off
    x, dy = (paddle.to_tensor(rng.standard_normal((7, 3, 33)) * 4).astype(dtype) for _ in range(2))
    given = x.detach()
    given.stop_gradient = False
    y = VARIANTS[variant](given)
    assert y.dtype == given.dtype
    assert y.shape == [7, 3, 33]
    y.backward(dy)
    wide, slopes = x.astype("float64").numpy(), dy.astype("float64").numpy()
    expected = reference.forward(wide, variant), reference.backward(wide, slopes, variant)
    for found, wanted in zip((y, given.grad), expected, strict=True):
        np.testing.assert_allclose(found.astype("float64").numpy(), wanted, rtol=bound, atol=bound)
    with paddle.no_grad():
        np.testing.assert_array_equal(VARIANTS[variant](given).numpy(), y.numpy())


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients(rng, check_gradients, variant):
    check_gradients(VARIANTS[variant], rng.standard_normal((3, 5)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_extreme_values_stay_finite(variant):
    x = paddle.to_tensor([-1e4, -100.0, 0.0, 100.0, 1e4], stop_gradient=False)
    y = VARIANTS[variant](x)
    y.sum().backward()
    np.testing.assert_allclose(y.numpy(), [0, 0, 0, 100, 1e4], atol=1e-30)
    np.testing.assert_allclose(x.grad.numpy(), [0, 0, 0.5, 1, 1], rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("variant", VARIANTS)
def test_same_bits(rng, check_same_bits, variant):
    check_same_bits(VARIANTS[variant], rng.standard_normal((300, 170)).astype("float32"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_its_result_is_all_that_is_new(variant):
    x = paddle.randn([64, 256])
    x.stop_gradient = False
    gc.collect()
    before = core.host_memory_stat_current_value("Allocated", 0)
    y = VARIANTS[variant](x)
    assert core.host_memory_stat_current_value("Allocated", 0) - before == 4 * y.size
