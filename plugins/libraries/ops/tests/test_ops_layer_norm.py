"""Layer norm against float64 numpy, with kernels and without."""

import numpy as np
import paddle
import pytest
from ernie_third_party_kernels.layer_norm import reference
from erniecore_ops import functions as ops
from erniecore_ops.layer_norm import layer_norm_backward, layer_norm_forward


def tensors(rng, shape, dtype="float32"):
    return [paddle.to_tensor(rng.standard_normal(s).astype(dtype)) for s in (shape, shape[-1:], shape[-1:])]


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 64), (2, 3, 4, 33)])
def test_matches_the_definition(rng, shape):
    x, weight, bias = tensors(rng, shape)
    rows = x.numpy().astype("float64").reshape(-1, shape[-1])
    expected = reference.forward(rows, weight.numpy(), bias.numpy(), 1e-5)[0].reshape(shape)
    np.testing.assert_allclose(ops.layer_norm(x, weight, bias, 1e-5).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_gradients(rng, check_gradients):
    arrays = rng.standard_normal((2, 3, 9)), rng.standard_normal(9), rng.standard_normal(9)
    check_gradients(lambda x, w, b: ops.layer_norm(x, w, b, 1e-5), *arrays)


def test_what_runs_where_a_kernel_does_not_take_the_arguments(rng):
    """The functions that kernels replace, as they are."""
    x, weight, bias = tensors(rng, (5, 12), "float64")
    dy, arrays = tensors(rng, (5, 12), "float64")[0], (x.numpy(), weight.numpy(), bias.numpy())
    y, mean, inverse = layer_norm_forward.__wrapped__(x, weight, bias, 1e-5)
    for found, wanted in zip((y, mean, inverse), reference.forward(*arrays, 1e-5), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-10, atol=1e-12)
    expected = reference.backward(*arrays[:2], mean.numpy(), inverse.numpy(), dy.numpy())
    for wanted in ((True, True), (True, False), (False, True)):
        found = layer_norm_backward.__wrapped__(x, weight, mean, inverse, dy, wanted)
        assert [part is not None for part in found] == [wanted[0], wanted[1], wanted[1]]
        for part, right in zip(found, expected, strict=True):
            if part is not None:
                np.testing.assert_allclose(part.numpy(), right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scale", [0.0, 1e-15, 1e15])
def test_extreme_rows_stay_finite(rng, scale):
    x = paddle.to_tensor((rng.standard_normal((4, 32)) * scale).astype("float32"), stop_gradient=False)
    y = ops.layer_norm(x, paddle.ones([32]), paddle.zeros([32]), 1e-5)
    y.sum().backward()
    assert np.isfinite(y.numpy()).all()
    assert np.isfinite(x.grad.numpy()).all()


def test_rows_far_from_zero(rng):
    """The mean is subtracted before anything is squared."""
    x = rng.standard_normal((3, 200)) + 1000
    given = x.astype("float32")
    wanted = reference.forward(given.astype("float64"), np.ones(200), np.zeros(200), 1e-5)[0]
    found = ops.layer_norm(paddle.to_tensor(given), paddle.ones([200]), paddle.zeros([200]), 1e-5)
    np.testing.assert_allclose(found.numpy(), wanted, atol=2e-4)


def test_halves_are_normalized_in_float32(rng):
    x, weight, bias = (t.astype("bfloat16") for t in tensors(rng, (3, 16)))
    wide = ops.layer_norm(*(t.astype("float32") for t in (x, weight, bias)), 1e-5)
    y = ops.layer_norm(x, weight, bias, 1e-5)
    assert y.dtype == paddle.bfloat16
    assert np.array_equal(y.astype("float32").numpy(), wide.astype("bfloat16").astype("float32").numpy())


@pytest.mark.parametrize(
    "learns", [(True, False, False), (False, True, True), (True, False, True), (False, True, False)]
)
def test_what_is_frozen_gets_no_gradient(rng, learns):
    given = tensors(rng, (3, 8))
    for tensor, learning in zip(given, learns, strict=True):
        tensor.stop_gradient = not learning
    ops.layer_norm(*given, 1e-5).sum().backward()
    assert tuple(tensor.grad is not None for tensor in given) == learns


def test_same_bits(rng, check_same_bits):
    arrays = (t.numpy() for t in tensors(rng, (2, 70, 48)))
    check_same_bits(lambda x, w, b: ops.layer_norm(x, w, b, 1e-5), *arrays)
