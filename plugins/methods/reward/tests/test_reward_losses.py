"""The losses of reward models in float64: closed-form points, gradients, limits."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_reward.losses import bradley_terry, centering


def tensors(*rows):
    return [paddle.to_tensor(np.array(row, np.float64), stop_gradient=False) for row in rows]


def log_sigmoid(x):
    return -np.logaddexp(0, -x)


C, R, M = [0.3, -1.2, 4.0], [0.1, 0.8, -2.0], [0.5, 0.0, 7.0]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_values(smoothing):
    c, r, m = tensors(C, R, M)
    x = np.array(C) - np.array(R) - np.array(M)
    expected = -(1 - smoothing) * log_sigmoid(x) - smoothing * log_sigmoid(-x)
    np.testing.assert_allclose(bradley_terry(c, r, m, label_smoothing=smoothing).numpy(), expected, rtol=1e-14)


def test_equal_rewards_cost_ln_2_whatever_the_smoothing():
    c, r = tensors([1.5], [1.5])
    for smoothing in (0.0, 0.3):
        assert bradley_terry(c, r, label_smoothing=smoothing).item() == pytest.approx(np.log(2), rel=1e-14)


def test_a_margin_moves_the_loss_as_a_worse_reward_does():
    c, r, m = tensors(C, R, M)
    np.testing.assert_allclose(bradley_terry(c, r, m).numpy(), bradley_terry(c - m, r).numpy(), rtol=1e-14)


def test_smoothed_loss_has_its_minimum_at_the_assumed_odds():
    x, zero = tensors([np.log(0.9 / 0.1)], [0.0])
    bradley_terry(x, zero, label_smoothing=0.1).sum().backward()
    assert x.grad.item() == pytest.approx(0, abs=1e-15)


def test_gradient():
    """d/dc = -(σ(-x) - e (σ(-x) + σ(x))) by hand; d/dr its opposite; centering 2 (c + r)."""
    c, r = tensors(C, R)
    (bradley_terry(c, r, label_smoothing=0.2) + 0.3 * centering(c, r)).sum().backward()
    x, total = np.array(C) - np.array(R), np.array(C) + np.array(R)
    slope = -(1 / (1 + np.exp(x)) - 0.2)
    np.testing.assert_allclose(c.grad.numpy(), slope + 0.6 * total, rtol=1e-12)
    np.testing.assert_allclose(r.grad.numpy(), -slope + 0.6 * total, rtol=1e-12)


def test_far_apart_is_finite_and_linear():
    c, r = tensors([-1e6, 1e6], [1e6, -1e6])
    assert bradley_terry(c, r).tolist() == [2e6, 0.0]
