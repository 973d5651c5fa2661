"""RMS norm against float64 numpy."""

import numpy as np
import paddle
import pytest
from erniecore_ops import functions as ops


def reference(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 64), (2, 3, 4, 33)])
def test_matches_the_definition(rng, shape):
    x, weight = rng.standard_normal(shape), rng.standard_normal(shape[-1])
    y = ops.rms_norm(paddle.to_tensor(x.astype("float32")), paddle.to_tensor(weight.astype("float32")), 1e-5)
    np.testing.assert_allclose(y.numpy(), reference(x, weight, 1e-5), rtol=1e-5, atol=1e-6)


def test_gradients(rng, check_gradients):
    x, weight = rng.standard_normal((2, 3, 9)), rng.standard_normal(9)
    check_gradients(lambda x, w: ops.rms_norm(x, w, 1e-5), x, weight)


@pytest.mark.parametrize("scale", [0.0, 1e-15, 1e15])
def test_extreme_rows_stay_finite(rng, scale):
    x = paddle.to_tensor((rng.standard_normal((4, 32)) * scale).astype("float32"), stop_gradient=False)
    y = ops.rms_norm(x, paddle.ones([32]), 1e-5)
    y.sum().backward()
    assert np.isfinite(y.numpy()).all()
    assert np.isfinite(x.grad.numpy()).all()


def test_half_precision_is_normalized_in_float32_and_rounded_before_the_weight(rng):
    x = paddle.to_tensor(rng.standard_normal((3, 16)).astype("float32")).astype("bfloat16")
    weight = paddle.to_tensor(rng.standard_normal(16).astype("float32")).astype("bfloat16")
    x32 = x.astype("float32")
    normal = (x32 * paddle.rsqrt((x32 * x32).mean(-1, keepdim=True) + 1e-5)).astype("bfloat16")
    expected = (normal * weight).astype("float32").numpy()
    y = ops.rms_norm(x, weight, 1e-5)
    assert y.dtype == paddle.bfloat16
    assert np.array_equal(y.astype("float32").numpy(), expected)


def test_frozen_weight_gets_no_gradient(rng):
    x = paddle.to_tensor(rng.standard_normal((3, 8)).astype("float32"), stop_gradient=False)
    weight = paddle.ones([8])
    ops.rms_norm(x, weight, 1e-5).sum().backward()
    assert weight.grad is None
    assert x.grad is not None


def test_same_bits(rng, check_same_bits):
    x = rng.standard_normal((2, 70, 48)).astype("float32")
    check_same_bits(lambda x, w: ops.rms_norm(x, w, 1e-5), x, np.ones(48, "float32"))
