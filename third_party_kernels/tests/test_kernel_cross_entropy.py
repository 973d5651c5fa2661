"""Loss and slopes of rows of logits, and sums of products, against numpy in float64."""

from types import SimpleNamespace

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels.blas import sgemm
from ernie_third_party_kernels.cross_entropy import reference
from erniecore_ops.linear_cross_entropy import Piece, cross_entropy_rows_

SHAPES = [(1, 1), (3, 2), (2, 15), (4, 64), (7, 129), (33, 257), (3, 5000)]
MKL = pytest.mark.skipif(sgemm() is None, reason="Paddle came without MKL")


def piece(labels):
    return SimpleNamespace(labels=paddle.to_tensor(labels))


def run(kernels, logits, labels, slopes=True):
    """Loss of the kernel, and what it leaves of the logits."""
    kernel = kernels["cross_entropy_rows_"]
    assert kernel.supports(logits, piece(labels), None, slopes)
    return kernel.run(logits, piece(labels), None, slopes).numpy(), logits.numpy()


@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_slopes(kernels, tensor, rng, slope, shape, scale):
    logits, labels = rng.standard_normal(shape) * scale, rng.integers(0, shape[1], shape[0])
    loss, slopes = reference.cross_entropy(logits, labels)
    dy = np.ones(shape[0])
    slope(lambda x: reference.cross_entropy(x, labels)[0], (logits,), (slopes,), dy)
    found, left = run(kernels, tensor(logits), labels)
    np.testing.assert_allclose(found, loss, rtol=1e-5, atol=2e-6 * scale)
    np.testing.assert_allclose(left, slopes, rtol=1e-5, atol=1e-6)
    alone, _ = run(kernels, tensor(logits), labels, slopes=False)
    assert np.array_equal(alone, found), "the loss does not depend on who wants slopes"


def test_it_computes_what_the_operators_of_erniecore_compute(kernels, tensor, rng):
    logits, labels = rng.standard_normal((9, 300)) * 5, rng.integers(0, 300, 9)
    ours = run(kernels, tensor(logits), labels)
    theirs = tensor(logits)
    whole = Piece(slice(9), paddle.to_tensor(np.arange(9) * 300 + labels), paddle.to_tensor(labels))
    loss = cross_entropy_rows_.__wrapped__(theirs, whole, None, True)
    np.testing.assert_allclose(ours[0], loss.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours[1], theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_improbable_labels_have_an_exact_loss(kernels, tensor):
    logits = np.array([[0.0, 500.0, 1.0] * 30, [1e30, 0.0, 0.0] * 30])
    loss, left = run(kernels, tensor(logits), np.array([3, 1]))
    np.testing.assert_allclose(loss, [500 + np.log(30), 1e30], rtol=1e-6)
    assert np.isfinite(left).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 17, 69])
def test_what_is_not_finite_shows_in_its_row_alone(kernels, tensor, rng, bad, place):
    logits = rng.standard_normal((3, 70))
    logits[1, place] = bad
    loss, left = run(kernels, tensor(logits), np.array([5, 6, 7]))
    assert np.isnan(loss).tolist() == [False, True, False]
    assert np.isfinite(left[[0, 2]]).all()


def test_labels_of_another_type_or_number_are_left_to_the_reference(kernels):
    kernel, logits = kernels["cross_entropy_rows_"], paddle.ones([4, 8])
    labels = np.zeros(4, np.int64)
    assert kernel.supports(logits, piece(labels), None, True)
    for others in (labels.astype(np.int32), labels[:3]):
        assert not kernel.supports(logits, piece(others), None, True)
    for strange in (logits.astype("float64"), paddle.ones([4, 16])[:, :8], paddle.zeros([0, 8])):
        assert not kernel.supports(strange, piece(labels[: strange.shape[0]]), None, True)


@MKL
@pytest.mark.parametrize(("depth", "M", "N"), [(1, 1, 1), (5, 7, 3), (64, 33, 130)])
def test_sums_of_products(kernels, tensor, rng, depth, M, N):
    total, left, right = rng.standard_normal((M, N)), rng.standard_normal((depth, M)), rng.standard_normal((depth, N))
    place = tensor(total)
    assert kernels["add_matmul_"].supports(place, tensor(left), tensor(right))
    kernels["add_matmul_"].run(place, tensor(left), tensor(right))
    np.testing.assert_allclose(place.numpy(), total + left.T @ right, rtol=1e-5, atol=1e-5)


@MKL
def test_products_that_do_not_fit_are_left_to_the_reference(kernels):
    supports, left = kernels["add_matmul_"].supports, paddle.ones([4, 3])
    assert supports(paddle.ones([3, 5]), left, paddle.ones([4, 5]))
    for total, right in (([3, 5], [5, 5]), ([5, 3], [4, 5]), ([3, 4], [4, 5])):
        assert not supports(paddle.ones(total), left, paddle.ones(right))
    assert not supports(paddle.ones([3, 5]), left, paddle.ones([4, 10])[:, :5])
    assert not supports(paddle.ones([3, 5], "float64"), left, paddle.ones([4, 5]))
