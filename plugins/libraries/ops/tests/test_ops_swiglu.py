"""SwiGLU against float64 numpy."""

import numpy as np
import paddle
import pytest
from erniecore_ops import functions as ops


def reference(gate, up):
    with np.errstate(over="ignore"):
        return gate / (1 + np.exp(-gate)) * up


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (2, 3, 64), (3000, 130)])
def test_matches_the_definition(rng, shape):
    gate, up = rng.standard_normal(shape) * 3, rng.standard_normal(shape)
    y = ops.swiglu(paddle.to_tensor(gate.astype("float32")), paddle.to_tensor(up.astype("float32")))
    np.testing.assert_allclose(y.numpy(), reference(gate, up), rtol=2e-6, atol=1e-6)


def test_gradients(rng, check_gradients):
    check_gradients(ops.swiglu, rng.standard_normal((3, 5)), rng.standard_normal((3, 5)))


def test_extreme_gates_stay_finite():
    gate = paddle.to_tensor([-1e4, -100.0, 0.0, 100.0, 1e4], stop_gradient=False)
    y = ops.swiglu(gate, paddle.ones([5]))
    y.sum().backward()
    np.testing.assert_allclose(y.numpy(), [0, 0, 0, 100, 1e4], atol=1e-30)
    np.testing.assert_allclose(gate.grad.numpy(), [0, 0, 0.5, 1, 1], atol=1e-30)


def test_same_bits(rng, check_same_bits):
    arrays = [rng.standard_normal((900, 700)).astype("float32") for _ in range(2)]
    check_same_bits(ops.swiglu, *arrays)


def test_threads_do_not_change_bits(rng, two_threads):
    gate, up = (paddle.to_tensor(rng.standard_normal((1500, 700)).astype("float32")) for _ in range(2))
    on_two = ops.swiglu(gate, up).numpy()
    paddle.base.core.set_num_threads(1)
    assert np.array_equal(on_two, ops.swiglu(gate, up).numpy())
