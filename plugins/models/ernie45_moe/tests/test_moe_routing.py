"""Properties of the router's pure functions."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45_moe.router import assignments, drop_over_capacity, hide_padding, loads, route
from hypothesis import given, settings
from hypothesis import strategies as st

T, H, E, K = 12, 6, 5, 3


def example(seed, bias=0.0, scoring="softmax"):
    rng = np.random.default_rng(seed)
    x, gate = rng.standard_normal((T, H)), rng.standard_normal((H, E))
    tensors = [paddle.to_tensor(a.astype(np.float32)) for a in (x, gate, np.full((1, E), bias))]
    return route(*tensors, num_selected=K, norm_min=1e-12, scoring=scoring)


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_weights_are_the_selected_shares_and_sum_to_one(seed):
    routing = example(seed)
    scores = np.take_along_axis(routing.scores.numpy(), routing.experts.numpy(), axis=1)
    np.testing.assert_allclose(routing.weights.numpy(), scores / scores.sum(1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(routing.weights.numpy().sum(1), 1.0, rtol=1e-6)
    assert all(len(set(row)) == K for row in routing.experts.numpy().tolist())


def test_the_bias_selects_but_does_not_weigh():
    rng = np.random.default_rng(0)
    x, gate = (paddle.to_tensor(rng.standard_normal(s).astype(np.float32)) for s in ((T, H), (H, E)))
    bias = np.zeros((1, E), np.float32)
    bias[0, 2] = 10.0
    routing = route(x, gate, paddle.to_tensor(bias), num_selected=1, norm_min=1e-12)
    assert routing.experts.numpy().tolist() == [[2]] * T
    np.testing.assert_allclose(routing.weights.numpy(), 1.0)
    np.testing.assert_allclose(routing.scores.numpy().sum(1), 1.0, rtol=1e-6)


def test_given_experts_are_taken_with_weights_of_the_present_scores():
    rng = np.random.default_rng(0)
    x, gate = (paddle.to_tensor(rng.standard_normal(s).astype(np.float32)) for s in ((T, H), (H, E)))
    bias, options = paddle.zeros([1, E]), {"num_selected": K, "norm_min": 1e-12}
    chosen = route(x, gate, bias, **options)
    again = route(x, gate, bias, given_Tk=chosen.experts, **options)
    for one, two in zip(chosen, again, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
    moved = gate + 2 * paddle.to_tensor(rng.standard_normal((H, E)).astype(np.float32))
    moved.stop_gradient = False
    given = route(x, moved, bias, given_Tk=chosen.experts, **options)
    assert (route(x, moved, bias, **options).experts.numpy() != chosen.experts.numpy()).any()
    np.testing.assert_array_equal(given.experts.numpy(), chosen.experts.numpy())
    scores = np.take_along_axis(given.scores.numpy(), chosen.experts.numpy(), axis=1)
    np.testing.assert_allclose(given.weights.numpy(), scores / scores.sum(1, keepdims=True), rtol=1e-6)
    given.weights[:, 0].sum().backward()
    assert np.abs(moved.grad.numpy()).max() > 0


def test_routing_is_float32_for_activations_of_any_dtype():
    gate = paddle.rand([H, E])
    routing = route(paddle.rand([T, H]).astype("float64"), gate, paddle.zeros([1, E]), num_selected=K, norm_min=1e-12)
    assert {str(t.dtype) for t in (routing.logits, routing.scores, routing.weights)} == {"paddle.float32"}


def test_tiny_scores_are_divided_by_the_floor_not_by_zero():
    gate = paddle.zeros([H, E])
    gate[:, 0] = 100.0
    bias = paddle.to_tensor([[-10.0, 5.0, 5.0, 5.0, 0.0]])
    routing = route(paddle.ones([1, H]), gate, bias, num_selected=K, norm_min=1e-12)
    assert np.isfinite(routing.weights.numpy()).all()
    assert routing.weights.numpy().max() < 1e-12


def test_sigmoid_scores_of_one_expert_do_not_depend_on_the_others():
    routing = example(1, scoring="sigmoid")
    np.testing.assert_allclose(routing.scores.numpy(), 1 / (1 + np.exp(-routing.logits.numpy())), rtol=1e-5)


def test_gradients_reach_the_gate_through_the_weights_only():
    gate = paddle.rand([H, E])
    gate.stop_gradient = False
    bias = paddle.zeros([1, E])
    bias.stop_gradient = False
    routing = route(paddle.rand([T, H]), gate, bias, num_selected=K, norm_min=1e-12)
    (routing.weights * paddle.rand([T, K])).sum().backward()
    assert np.abs(gate.grad.numpy()).max() > 0
    assert bias.grad is None


def test_padding_goes_nowhere():
    real = paddle.arange(T) >= 4
    experts = hide_padding(example(0), real).experts.numpy()
    assert (experts[:4] == -1).all()
    assert (experts[4:] >= 0).all()
    assert hide_padding(example(0), None).experts.numpy().min() >= 0


def test_assignments_are_counted_per_expert():
    counts = assignments(paddle.to_tensor([[0, 2], [2, -1], [-1, -1]]), 4).numpy()
    np.testing.assert_array_equal(counts, [[1, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]])


def test_loads_are_assignments_summed_over_tokens():
    experts = paddle.to_tensor(np.random.default_rng(0).integers(-1, 5, (64, 3)))
    np.testing.assert_array_equal(loads(experts, 6).numpy(), assignments(experts, 6).sum(axis=0).numpy())
    np.testing.assert_array_equal(loads(paddle.full([2, 2], -1, "int64"), 3).numpy(), [0, 0, 0])


@pytest.mark.parametrize("capacity", [1, 2, 4, T])
def test_an_expert_keeps_its_first_assignments_and_weights_are_normalized_again(capacity):
    before = example(3)
    after = drop_over_capacity(before, capacity, 1e-12)
    taken = [0] * E
    for token in range(T):
        shares = []
        for slot, expert in enumerate(before.experts.numpy()[token]):
            kept = taken[expert] < capacity
            taken[expert] += kept
            assert after.experts.numpy()[token, slot] == (expert if kept else -1)
            shares.append(before.scores.numpy()[token, expert] * kept)
        expected = np.array(shares) / max(sum(shares), 1e-12)
        np.testing.assert_allclose(after.weights.numpy()[token], expected, atol=1e-6)


def test_padding_takes_no_capacity():
    real = paddle.arange(T) >= T - 1
    after = drop_over_capacity(hide_padding(example(3), real), 1, 1e-12).experts.numpy()
    assert (after[-1] >= 0).all()
    assert (after[:-1] == -1).all()
