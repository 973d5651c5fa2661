"""Experts put together from their pieces: against the fused operator, and gradients against finite differences."""

import numpy as np
import paddle
import pytest
from erniecore_ops import functions as ops


def example(rng, T=23, H=6, I=10, E=5, k=2):  # noqa: E741
    arrays = [rng.standard_normal(s) * 0.5 for s in ((T, H), (E, H, I), (E, H, I), (E, I, H))]
    experts = np.stack([rng.permutation(E)[:k] for _ in range(T)])
    experts[3, 1] = experts[7, 0] = -1
    return arrays, experts, rng.random((T, k))


def put_together(x, gate, up, down, experts, weights):
    rows, routes = ops.dispatch(x, experts, gate.shape[0])
    act = ops.swiglu(ops.grouped_linear(rows, gate, routes), ops.grouped_linear(rows, up, routes))
    return ops.combine(ops.grouped_linear(act, down, routes), weights, routes)


def test_pieces_are_the_fused_operator(rng):
    arrays, experts, weights = example(rng)
    tensors, index = [paddle.to_tensor(a) for a in (*arrays, weights)], paddle.to_tensor(experts)
    fused = ops.grouped_swiglu(*tensors[:4], index, tensors[4])
    np.testing.assert_allclose(put_together(*tensors[:4], index, tensors[4]).numpy(), fused.numpy(), atol=1e-12)


def test_gradients(rng, check_gradients):
    arrays, experts, weights = example(rng)
    index = paddle.to_tensor(experts)
    check_gradients(lambda x, g, u, d, w: put_together(x, g, u, d, index, w), *arrays, weights, tolerance=1e-6)


def test_gradient_of_values_per_expert(rng, check_gradients):
    arrays, experts, _ = example(rng)
    _, routes = ops.dispatch(paddle.to_tensor(arrays[0]), paddle.to_tensor(experts), 5)
    check_gradients(lambda values: ops.grouped_rows(values, routes), rng.standard_normal((5, 4)))


def test_frozen_weights_get_no_gradient_and_pass_it_on(rng):
    arrays, experts, weights = example(rng)
    x, *frozen = (paddle.to_tensor(a) for a in arrays)
    x.stop_gradient = False
    put_together(x, *frozen, paddle.to_tensor(experts), paddle.to_tensor(weights)).sum().backward()
    assert (x.grad.numpy() != 0).any()
    assert all(w.grad is None for w in frozen)


def test_everything_dropped(rng):
    arrays, experts, weights = example(rng)
    tensors = [paddle.to_tensor(a, stop_gradient=False) for a in (*arrays, weights)]
    y = put_together(*tensors[:4], paddle.full(experts.shape, -1, "int64"), tensors[4])
    y.sum().backward()
    assert (y.numpy() == 0).all()
    assert all((t.grad.numpy() == 0).all() for t in tensors)


def test_foreign_experts_are_refused():
    with pytest.raises(ValueError, match="experts must be"):
        ops.dispatch(paddle.ones([2, 3]), paddle.to_tensor([[0], [7]]), 5)


def test_same_bits(rng, check_same_bits):
    arrays, experts, weights = example(rng, T=200, E=7, k=3)
    index = paddle.to_tensor(experts)
    check_same_bits(
        lambda x, g, u, d, w: put_together(x, g, u, d, index, w), *(a.astype("float32") for a in (*arrays, weights))
    )


def test_product_with_weights_either_way_round(rng):
    (x, gate, *_), experts, _ = example(rng)
    rows, routes = ops.dispatch(paddle.to_tensor(x), paddle.to_tensor(experts), 5)
    weight = paddle.to_tensor(gate)
    expected = ops.grouped_linear(rows, weight, routes).numpy()
    turned = weight.transpose([0, 2, 1])
    np.testing.assert_allclose(ops.grouped_matmul(rows, weight, routes.parts).numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(
        ops.grouped_matmul(rows, turned, routes.parts, transposed=True).numpy(), expected, atol=1e-12
    )
