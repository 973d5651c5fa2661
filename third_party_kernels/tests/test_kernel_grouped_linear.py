"""Gradients of stacked matrices in one call: many, few and no rows, either side the larger one."""

from types import SimpleNamespace

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels.grouped_linear import reference

#: (expert, first row, row after the last): many rows, one, none
ENDS = [(2, 0, 190), (0, 190, 191), (3, 191, 191), (4, 191, 230)]
#: (inputs, outputs)
SHAPES = [(48, 8), (8, 48), (16, 16), (304, 67), (5, 16), (1040, 32), (3, 528)]


def parts(ends):
    return [SimpleNamespace(expert=e, rows=slice(a, b)) for e, a, b in ends]


def near(found, expected, size):
    assert (np.abs(found.numpy() - expected) <= 2e-6 * size + 1e-30).all()


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_gradient_of_the_matrices(kernels, tensor, rng, inputs, outputs):
    x, dy = (rng.standard_normal((230, n)).astype(np.float32) for n in (inputs, outputs))
    call = kernels["grouped_weight_gradient"]
    assert call.supports(tensor(x), tensor(dy), parts(ENDS), 6)
    found = call.run(tensor(x), tensor(dy), parts(ENDS), 6)
    exact = reference.weight_gradient(x.astype(np.float64), dy.astype(np.float64), ENDS, 6)
    near(found, exact, reference.weight_gradient(np.abs(x), np.abs(dy), ENDS, 6))


def test_refused(kernels):
    x, dy = paddle.ones([230, 16]), paddle.ones([230, 8])
    call = kernels["grouped_weight_gradient"]
    assert call.supports(x, dy, parts(ENDS), 6)
    assert not call.supports(x, dy, parts([(2, 0, 100), (2, 100, 230)]), 6)
    assert not call.supports(x, dy, parts(ENDS[:-1]), 6)
    assert not call.supports(x, dy, parts(ENDS), 4)
    assert not call.supports(x, dy[:200], parts(ENDS), 6)
    assert not call.supports(x.astype("float64"), dy, parts(ENDS), 6)
    assert not call.supports(paddle.ones([230, 15]), dy, parts(ENDS), 6)
    assert not call.supports(paddle.ones([230, 1024]), paddle.ones([230, 512]), parts(ENDS), 6)
