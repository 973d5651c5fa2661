"""Linear layers with a bias: values, gradients, what they keep, and the layer."""

import gc

import numpy as np
import paddle
import pytest
from erniecore_ops import functions as ops
from erniecore_ops.bias import add_bias_, sum_rows
from erniecore_ops.matmul import Linear
from paddle import nn
from paddle.base import core


def tensors(rng, shape, outputs, dtype="float32"):
    return [paddle.to_tensor(rng.standard_normal(s).astype(dtype)) for s in (shape, (shape[-1], outputs), (outputs,))]


@pytest.mark.parametrize(("shape", "outputs"), [((1, 1), 1), ((5, 7), 3), ((2, 3, 20), 33), ((0, 4), 3)])
def test_values_and_gradients(rng, shape, outputs):
    given = tensors(rng, shape, outputs)
    x, w, b = (t.numpy().astype("float64") for t in given)
    dy = rng.standard_normal((*shape[:-1], outputs)).astype("float32")
    for tensor in given:
        tensor.stop_gradient = False
    y = ops.linear(*given)
    np.testing.assert_allclose(y.numpy(), x @ w + b, rtol=1e-5, atol=1e-5)
    y.backward(paddle.to_tensor(dy))
    rows, slopes = x.reshape(-1, shape[-1]), dy.astype("float64").reshape(-1, outputs)
    for tensor, wanted in zip(given, (dy @ w.T, rows.T @ slopes, slopes.sum(0)), strict=True):
        np.testing.assert_allclose(tensor.grad.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_other_dtypes_are_those_of_paddle(rng):
    x, w, b = tensors(rng, (4, 6), 5, "float64")
    assert np.array_equal(ops.linear(x, w, b).numpy(), paddle.nn.functional.linear(x, w, b).numpy())


@pytest.mark.parametrize(
    "learns", [(True, False, False), (False, True, False), (False, False, True), (True, True, False)]
)
def test_what_is_frozen_gets_no_gradient(rng, learns):
    given = tensors(rng, (3, 8), 4)
    for tensor, learning in zip(given, learns, strict=True):
        tensor.stop_gradient = not learning
    ops.linear(*given).sum().backward()
    assert tuple(tensor.grad is not None for tensor in given) == learns


def kept(function):
    """Bytes that are there after ``function`` and were not before, beside its result."""
    gc.collect()
    before = core.host_memory_stat_current_value("Allocated", 0)
    y = function()
    gc.collect()
    return core.host_memory_stat_current_value("Allocated", 0) - before - 4 * y.size


@pytest.mark.parametrize(("learns", "kept_bytes"), [(True, 4 * 64 * 256), (False, 0)])
def test_the_input_is_kept_for_a_weight_that_learns_alone(rng, learns, kept_bytes):
    x, w, b = tensors(rng, (64, 256), 32)
    w.stop_gradient = b.stop_gradient = not learns
    x.stop_gradient = False
    assert kept(lambda: ops.linear(x * 2, w, b)) == kept_bytes


def test_same_bits(rng, check_same_bits):
    check_same_bits(ops.linear, *(t.numpy() for t in tensors(rng, (2, 70, 48), 96)))


def test_functions_that_kernels_replace(rng):
    y, bias = paddle.to_tensor(rng.standard_normal((3, 5))), paddle.to_tensor(rng.standard_normal(5))
    wanted = y.numpy() + bias.numpy()
    np.testing.assert_allclose(sum_rows.__wrapped__(y).numpy(), y.numpy().sum(0), rtol=1e-12)
    assert np.array_equal(add_bias_.__wrapped__(y, bias).numpy(), wanted)
    assert np.array_equal(y.numpy(), wanted)


def test_the_layer_is_one_of_paddle_and_known_as_linear(rng):
    class Louder(Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    layer, plain = Linear(6, 4), nn.Linear(6, 4)
    plain.set_state_dict(layer.state_dict())
    x = paddle.to_tensor(rng.standard_normal((3, 6)).astype("float32"))
    np.testing.assert_allclose(layer(x).numpy(), plain(x).numpy(), rtol=1e-6, atol=1e-6)
    assert isinstance(layer, nn.Linear)
    assert [ops.is_plain_linear(made) for made in (layer, plain, Louder(6, 4), nn.LayerNorm(4))] == [
        True,
        True,
        False,
        False,
    ]
