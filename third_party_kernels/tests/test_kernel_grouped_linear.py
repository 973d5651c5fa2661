"""Linear maps of stacked experts in one call: products in both orders, gradients of the matrices, experts without rows."""

from types import SimpleNamespace

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels.grouped_linear import reference

#: (expert, first row, row after the last): many rows in two pieces, few, none
ENDS = [(2, 0, 100), (2, 100, 190), (0, 190, 191), (3, 191, 191), (4, 191, 230)]
WHOLE = [(2, 0, 190), *ENDS[2:]]
#: (inputs, outputs)
SHAPES = [(48, 8), (8, 48), (16, 16), (300, 67), (5, 3), (530, 32), (3, 528)]


def parts(ends):
    return [SimpleNamespace(expert=e, rows=slice(a, b)) for e, a, b in ends]


def near(found, expected, size):
    assert (np.abs(found.numpy() - expected) <= 2e-6 * size + 1e-30).all()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_products(kernels, tensor, rng, inputs, outputs, transposed):
    x = rng.standard_normal((230, inputs)).astype(np.float32)
    w = rng.standard_normal((6, outputs, inputs) if transposed else (6, inputs, outputs)).astype(np.float32)
    call = kernels["grouped_matmul"]
    assert call.supports(tensor(x), tensor(w), parts(ENDS), transposed=transposed)
    found = call.run(tensor(x), tensor(w), parts(ENDS), transposed=transposed)
    exact = reference.matmul(x.astype(np.float64), w, ENDS, transposed)
    near(found, exact, reference.matmul(np.abs(x), np.abs(w), ENDS, transposed))
    alone = call.run(tensor(x[190:]), tensor(w), parts([(0, 0, 1), (4, 1, 40)]), transposed=transposed)
    assert np.array_equal(alone.numpy(), found.numpy()[190:])


@pytest.mark.parametrize(("inputs", "outputs"), [shape for shape in SHAPES if max(shape) % 16 == 0])
def test_gradient_of_the_matrices(kernels, tensor, rng, inputs, outputs):
    x, dy = (rng.standard_normal((230, n)).astype(np.float32) for n in (inputs, outputs))
    call = kernels["grouped_weight_gradient"]
    assert call.supports(tensor(x), tensor(dy), parts(WHOLE), 6)
    found = call.run(tensor(x), tensor(dy), parts(WHOLE), 6)
    exact = reference.weight_gradient(x.astype(np.float64), dy.astype(np.float64), WHOLE, 6)
    near(found, exact, reference.weight_gradient(np.abs(x), np.abs(dy), WHOLE, 6))


def test_refused(kernels):
    x, w, dy = paddle.ones([230, 16]), paddle.ones([6, 16, 8]), paddle.ones([230, 8])
    product, gradient = kernels["grouped_matmul"], kernels["grouped_weight_gradient"]
    assert product.supports(x, w, parts(ENDS))
    assert not product.supports(x, w, parts(ENDS), transposed=True)
    assert not product.supports(x, w, parts(ENDS[:-1]))
    assert not product.supports(x, w[:4], parts(ENDS))
    assert not product.supports(x.astype("float64"), w, parts(ENDS))
    assert not product.supports(paddle.ones([230, 1024]), paddle.ones([6, 1024, 512]), parts(ENDS))
    assert gradient.supports(x, dy, parts(WHOLE), 6)
    assert not gradient.supports(x, dy, parts(ENDS), 6)  # two parts of one expert
    assert not gradient.supports(x, dy, parts(WHOLE), 4)
    assert not gradient.supports(paddle.ones([230, 15]), dy, parts(WHOLE), 6)
