"""Routed experts against a loop over assignments in float64."""

import sys

import numpy as np
import paddle
import pytest
from erniecore_ops import functions as ops


def reference(x, gate, up, down, experts, weights):
    y = np.zeros_like(x)
    for t, row in enumerate(experts):
        for j, e in enumerate(row):
            if e >= 0:
                g = x[t] @ gate[e]
                y[t] += weights[t, j] * (g / (1 + np.exp(-g)) * (x[t] @ up[e])) @ down[e]
    return y


def example(rng, T=29, H=8, I=12, E=5, k=2):  # noqa: E741
    arrays = [rng.standard_normal(s) * 0.5 for s in ((T, H), (E, H, I), (E, H, I), (E, I, H))]
    experts = np.stack([rng.permutation(E)[:k] for _ in range(T)])
    return arrays, experts, rng.random((T, k))


def run(arrays, experts, weights, dtype="float32"):
    x, gate, up, down = (paddle.to_tensor(a.astype(dtype)) for a in arrays)
    return ops.grouped_swiglu(x, gate, up, down, paddle.to_tensor(experts), paddle.to_tensor(weights.astype(dtype)))


@pytest.mark.parametrize(("T", "E", "k"), [(1, 1, 1), (1, 8, 3), (29, 5, 2), (29, 64, 4), (700, 3, 3)])
def test_matches_the_definition(rng, T, E, k):
    arrays, experts, weights = example(rng, T=T, E=E, k=k)
    y = run(arrays, experts, weights)
    np.testing.assert_allclose(y.numpy(), reference(*arrays, experts, weights), rtol=1e-4, atol=3e-6)


@pytest.mark.parametrize("rows", [1, 3, 512])
def test_rows_of_one_expert_in_pieces(rng, monkeypatch, rows):
    monkeypatch.setattr(sys.modules["erniecore_ops.grouped_swiglu"], "ROWS", rows)
    arrays, experts, weights = example(rng)
    y = run(arrays, experts, weights)
    np.testing.assert_allclose(y.numpy(), reference(*arrays, experts, weights), rtol=1e-4, atol=3e-6)


def test_dropped_assignments_add_nothing_and_get_no_gradient(rng):
    arrays, experts, weights = example(rng)
    experts[rng.random(experts.shape) < 0.4] = -1
    w = paddle.to_tensor(weights, stop_gradient=False)
    x, gate, up, down = map(paddle.to_tensor, arrays)
    y = ops.grouped_swiglu(x, gate, up, down, paddle.to_tensor(experts), w)
    y.sum().backward()
    np.testing.assert_allclose(y.numpy(), reference(*arrays, experts, weights), rtol=1e-9, atol=1e-12)
    assert (w.grad.numpy()[experts < 0] == 0).all()
    assert (w.grad.numpy()[experts >= 0] != 0).all()


def test_gradients(rng, check_gradients):
    arrays, experts, weights = example(rng)
    experts[3, 1] = experts[7, 0] = -1
    index = paddle.to_tensor(experts)
    check_gradients(
        lambda x, gate, up, down, w: ops.grouped_swiglu(x, gate, up, down, index, w), *arrays, weights, tolerance=1e-6
    )


def test_expert_without_tokens_gets_a_zero_gradient(rng):
    arrays, experts, weights = example(rng, E=5)
    experts[experts == 4] = -1
    x, gate, up, down = (paddle.to_tensor(a, stop_gradient=False) for a in arrays)
    y = ops.grouped_swiglu(x, gate, up, down, paddle.to_tensor(experts), paddle.to_tensor(weights))
    (y * y).sum().backward()
    for w in (gate, up, down):
        assert (w.grad.numpy()[4] == 0).all()
        assert (w.grad.numpy()[:4] != 0).any()


def test_everything_dropped(rng):
    arrays, experts, weights = example(rng)
    tensors = [paddle.to_tensor(a, stop_gradient=False) for a in (*arrays, weights)]
    y = ops.grouped_swiglu(*tensors[:4], paddle.full(experts.shape, -1, "int64"), tensors[4])
    y.sum().backward()
    assert (y.numpy() == 0).all()
    assert all((t.grad.numpy() == 0).all() for t in tensors)


def test_the_same_expert_twice_counts_twice(rng):
    arrays, _, weights = example(rng, T=4)
    experts = np.array([[1, 1], [0, 0], [2, 3], [4, 4]])
    np.testing.assert_allclose(
        run(arrays, experts, weights).numpy(), reference(*arrays, experts, weights), rtol=1e-4, atol=3e-6
    )


@pytest.mark.parametrize("bad", [-2, 5])
def test_foreign_experts_are_refused(rng, bad):
    arrays, experts, weights = example(rng, E=5)
    experts[0, 0] = bad
    with pytest.raises(ValueError, match="experts must be"):
        run(arrays, experts, weights)


def test_same_bits(rng, check_same_bits):
    arrays, experts, weights = example(rng, T=200, E=7, k=3)
    index = paddle.to_tensor(experts)
    check_same_bits(
        lambda x, gate, up, down, w: ops.grouped_swiglu(x, gate, up, down, index, w),
        *(a.astype("float32") for a in (*arrays, weights)),
    )


def test_threads_do_not_change_bits(rng, two_threads):
    example_ = example(rng, T=200, E=7, k=3)
    on_two = run(*example_).numpy()
    paddle.base.core.set_num_threads(1)
    assert np.array_equal(on_two, run(*example_).numpy())
