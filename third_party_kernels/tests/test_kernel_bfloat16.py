"""Weights that are kept in bfloat16, in both orders, few rows and many, stacks of experts: against numpy in float64."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels.bfloat16_weights import reference
from erniecore_ops import kernels as operators
from erniecore_ops.functions import frozen_linear

#: (rows, inputs, outputs)
SHAPES = [
    (1, 1, 1),
    (1, 131, 70),
    (3, 64, 96),
    (8, 37, 1100),
    (9, 300, 67),
    (64, 50, 33),
    (70, 130, 261),
    (203, 257, 64),
    (40, 2100, 70),
]


@pytest.fixture
def bfloat(rng):
    """A bfloat16 tensor, and its numbers."""

    def make(*shape):
        weight = paddle.to_tensor(rng.standard_normal(shape).astype(np.float32)).astype("bfloat16")
        return weight, weight.astype("float32").numpy()

    return make


@pytest.fixture
def in_place_of_the_reference(kernels, monkeypatch):
    """These kernels and no others; a run in this process may have put some in use before."""
    monkeypatch.setattr(operators, "_in_use", kernels)


def near(found, x, w):
    expected = x.astype(np.float64) @ w
    assert (np.abs(found.numpy() - expected) <= 2e-6 * (np.abs(x) @ np.abs(w)) + 1e-30).all()


def test_widening_is_exact(bfloat):
    _, numbers = bfloat(5, 7)
    bits = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    assert np.array_equal(reference.widened(bits), numbers)
    x = np.eye(5)
    assert np.array_equal(reference.matmul(x, bits, transposed=False), numbers)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_products(kernels, tensor, rng, bfloat, rows, inputs, outputs, transposed):
    weight, numbers = bfloat(*((outputs, inputs) if transposed else (inputs, outputs)))
    x = rng.standard_normal((rows, inputs)).astype(np.float32)
    call = kernels["bfloat16_matmul"]
    assert call.supports(tensor(x), weight, transposed)
    near(call.run(tensor(x), weight, transposed), x, numbers.T if transposed else numbers)


@pytest.mark.parametrize("transposed", [False, True])
def test_as_exact_as_products_in_float32(kernels, tensor, rng, bfloat, transposed):
    """The largest error is no larger than Paddle's with the widened weight; a quarter more for chance."""
    weight, numbers = bfloat(*((300, 1024) if transposed else (1024, 300)))
    x, w = rng.standard_normal((256, 1024)).astype(np.float32), numbers.T if transposed else numbers
    exact = x.astype(np.float64) @ w
    found = kernels["bfloat16_matmul"].run(tensor(x), weight, transposed).numpy()
    theirs = paddle.matmul(tensor(x), tensor(w)).numpy()
    assert np.abs(found - exact).max() <= 1.25 * np.abs(theirs - exact).max()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("parts", "bound"), [(1, 2.0**-8), (2, 2.0**-16)])
def test_rows_may_be_rounded(kernels, tensor, rng, bfloat, transposed, parts, bound):
    weight, w = bfloat(130, 130)
    x = rng.standard_normal((100, 130)).astype(np.float32)
    w = w.T if transposed else w
    found = kernels["bfloat16_matmul"].run(tensor(x), weight, transposed, parts).numpy()
    size = np.abs(x).astype(np.float64) @ np.abs(w)
    assert (np.abs(found - x.astype(np.float64) @ w) <= (bound + 1e-6) * size).all()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_spoils_no_other(kernels, tensor, rng, bfloat, transposed, value):
    weight, _ = bfloat(64, 64)
    x = rng.standard_normal((100, 64)).astype(np.float32)
    call = kernels["bfloat16_matmul"]
    clean = call.run(tensor(x), weight, transposed).numpy()
    x[30, 5] = value
    found = call.run(tensor(x), weight, transposed).numpy()
    assert not np.isfinite(found[30]).any()
    others = np.delete(np.arange(100), 30)
    assert np.array_equal(found[others], clean[others])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("ends", [[(0, 0, 2), (2, 2, 3)], [(3, 0, 80), (0, 80, 80), (1, 80, 203)]])
def test_experts(kernels, tensor, rng, bfloat, routes_of, ends, transposed):
    weight, numbers = bfloat(4, *((45, 70) if transposed else (70, 45)))
    x, call = rng.standard_normal((ends[-1][2], 70)).astype(np.float32), kernels["bfloat16_grouped_matmul"]
    assert call.supports(tensor(x), weight, routes_of(*ends), transposed)
    found = call.run(tensor(x), weight, routes_of(*ends), transposed)
    for expert, start, stop in ends:
        w = numbers[expert].T if transposed else numbers[expert]
        near(found[start:stop], x[start:stop], w)
    assert not call.supports(tensor(x), weight, routes_of(*ends[:-1]), transposed)


def test_refused(kernels, bfloat):
    weight, _ = bfloat(6, 4)
    call = kernels["bfloat16_matmul"]
    assert call.supports(paddle.ones([2, 6]), weight, False)
    assert not call.supports(paddle.ones([2, 4]), weight, False)
    assert not call.supports(paddle.ones([2, 6]), weight, False, 4)
    assert call.supports(paddle.ones([2, 4]), weight, True)
    for x, w in (
        (paddle.ones([2, 6], "bfloat16"), weight),
        (paddle.ones([2, 6]), weight.astype("float32")),
        (paddle.ones([2, 6]), bfloat(6, 8)[0][:, ::2]),
        (paddle.ones([0, 6]), weight),
    ):
        assert not call.supports(x, w, False)


@pytest.mark.usefixtures("in_place_of_the_reference")
@pytest.mark.parametrize("transposed", [False, True])
def test_the_operator_and_its_gradients(rng, bfloat, transposed):
    weight, numbers = bfloat(*((9, 33) if transposed else (33, 9)))
    w = numbers.T if transposed else numbers
    x = paddle.to_tensor(rng.standard_normal((2, 5, 33)).astype(np.float32), stop_gradient=False)
    bias = paddle.to_tensor(rng.standard_normal(9).astype(np.float32), stop_gradient=False)
    y = frozen_linear(x, weight, bias, transposed=transposed)
    np.testing.assert_allclose(y.numpy(), x.numpy() @ w + bias.numpy(), rtol=1e-4, atol=1e-5)
    (y * y).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * y.numpy() @ w.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(bias.grad.numpy(), 2 * y.numpy().sum((0, 1)), rtol=1e-4)
