"""Embedding: rows, and gradients that add up where an id repeats."""

import numpy as np
import paddle
from erniecore_ops import functions as ops


def test_gathers_rows_of_any_shape(rng):
    weight, ids = rng.standard_normal((11, 4)).astype("float32"), rng.integers(0, 11, (2, 3, 5))
    y = ops.embedding(paddle.to_tensor(ids), paddle.to_tensor(weight))
    assert np.array_equal(y.numpy(), weight[ids])


def test_gradient_adds_up_over_repeated_ids(rng):
    weight = paddle.to_tensor(rng.standard_normal((6, 3)).astype("float32"), stop_gradient=False)
    ids, upstream = np.array([[0, 5, 5], [2, 0, 5]]), rng.standard_normal((2, 3, 3)).astype("float32")
    ops.embedding(paddle.to_tensor(ids), weight).backward(paddle.to_tensor(upstream))
    expected = np.zeros((6, 3))
    np.add.at(expected, ids, upstream)
    np.testing.assert_allclose(weight.grad.numpy(), expected, rtol=1e-6)


def test_padding_row_learns_too():
    weight = paddle.ones([3, 2])
    weight.stop_gradient = False
    ops.embedding(paddle.to_tensor([0, 1]), weight).sum().backward()
    assert weight.grad.numpy()[0].tolist() == [1.0, 1.0]
