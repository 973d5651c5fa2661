"""The losses against their formulas in float64: closed-form points, gradients, tables."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_rl.advantages import ADVANTAGES, leave_one_out, zero_variance
from erniecore_rl.losses import (
    RATIOS,
    WEIGHTS,
    clipped_loss,
    completion_ratio,
    k3,
    mismatch_factor,
    per_sequence,
)

OWNER = np.array([0, 0, 0, 1, 1, 2])
LENGTHS = np.array([3, 2, 1])


def tensor(values, *, grad=False):
    return paddle.to_tensor(np.asarray(values, np.float64), stop_gradient=not grad)


def surrogate(log_probs, old, advantage, ratio="token", low=0.2, high=0.28):
    r = RATIOS[ratio](log_probs - old, paddle.to_tensor(OWNER), tensor(LENGTHS))
    return clipped_loss(r, advantage, low, high)[0]


@pytest.fixture
def random():
    return np.random.default_rng(3)


@pytest.mark.parametrize("ratio", RATIOS)
def test_on_policy_loss_is_minus_the_mean_advantage_and_its_gradient_that_of_reinforce(random, ratio):
    old, advantage = random.normal(-2, 1, 6), random.normal(0, 1, 3)[OWNER]
    log_probs = tensor(old, grad=True)
    loss = surrogate(log_probs, tensor(old), tensor(advantage), ratio).mean()
    assert float(loss) == pytest.approx(-advantage.mean(), abs=1e-15)
    loss.backward()
    # d(-A log p) for each token; the ratio of a sequence spreads it over its tokens, which is the same for one A
    np.testing.assert_allclose(log_probs.grad.numpy(), -advantage / 6, rtol=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.5, 1.0, -1.28, True),  # already much likelier: no more gain
        (1.1, 1.0, -1.1, False),
        (0.5, 1.0, -0.5, False),  # a good completion that became unlikely is always learned
        (0.5, -1.0, 0.8, True),  # already much unlikelier
        (0.9, -1.0, 0.9, False),
        (1.5, -1.0, 1.5, False),
    ],
)
def test_clipping_takes_the_smaller_gain(ratio, advantage, loss, clipped):
    found, is_clipped = clipped_loss(tensor(ratio), tensor(advantage), 0.2, 0.28)
    assert float(found) == pytest.approx(loss)
    assert bool(is_clipped) is clipped


def test_clipped_tokens_have_no_gradient():
    log_probs = tensor([0.0, 0.0], grad=True)
    old = tensor(np.log([1 / 1.5, 1 / 1.1]))
    loss, _ = clipped_loss(paddle.exp(log_probs - old), tensor([1.0, 1.0]), 0.2, 0.28)
    loss.sum().backward()
    np.testing.assert_allclose(log_probs.grad.numpy(), [0.0, -1.1], rtol=1e-12)


def test_ratio_of_a_sequence_is_the_geometric_mean_of_its_tokens(random):
    log_ratio = random.normal(0, 0.3, 6)
    found = RATIOS["sequence"](tensor(log_ratio), paddle.to_tensor(OWNER), tensor(LENGTHS)).numpy()
    for completion in range(3):
        expected = np.exp(log_ratio[completion == OWNER].mean())
        np.testing.assert_allclose(found[completion == OWNER], expected, rtol=1e-14)


def test_ratio_of_a_sequence_does_not_change_when_every_token_is_doubled(random):
    log_ratio = random.normal(0, 0.3, 6)
    once = RATIOS["sequence"](tensor(log_ratio), paddle.to_tensor(OWNER), tensor(LENGTHS)).numpy()
    twice = RATIOS["sequence"](
        tensor(np.repeat(log_ratio, 2)), paddle.to_tensor(np.repeat(OWNER, 2)), tensor(2 * LENGTHS)
    )
    np.testing.assert_allclose(twice.numpy()[::2], once, rtol=1e-14)


@pytest.mark.parametrize("ratio", RATIOS)
def test_gradient_is_the_slope_in_float64(random, ratio):
    old, start = random.normal(-2, 1, 6), random.normal(-2, 1, 6)
    advantage, reference, direction = random.normal(0, 1, 3)[OWNER], random.normal(-2, 1, 6), random.normal(0, 1, 6)

    def value(log_probs):
        losses = surrogate(log_probs, tensor(old), tensor(advantage), ratio) + 0.1 * k3(log_probs, tensor(reference))
        return losses.sum()

    log_probs = tensor(start, grad=True)
    value(log_probs).backward()
    step = 1e-6
    slope = (float(value(tensor(start + step * direction))) - float(value(tensor(start - step * direction)))) / (
        2 * step
    )
    assert float((log_probs.grad.numpy() * direction).sum()) == pytest.approx(slope, rel=1e-7)


def test_k3_is_unbiased_and_never_negative(random):
    policy, reference = random.dirichlet(np.ones(5)), random.dirichlet(np.ones(5))
    found = k3(tensor(np.log(policy)), tensor(np.log(reference))).numpy()
    assert (found >= 0).all()
    assert (policy * found).sum() == pytest.approx((policy * np.log(policy / reference)).sum(), rel=1e-12)
    assert float(k3(tensor(-1.5), tensor(-1.5))) == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [("token", [1 / 10] * 3), ("sequence", [1 / 12, 1 / 8, 1 / 4]), ("constant", [1 / 32] * 3)],
)
def test_weights_of_a_token(name, expected):
    totals = {"tokens": 10.0, "completions": 4.0}
    np.testing.assert_allclose(WEIGHTS[name](LENGTHS, 8, totals), expected, rtol=1e-15)


def test_advantages_of_a_group():
    rewards = np.array([[1.0, 0.0, 0.0, 0.0], [0.3, 0.3, 0.3, 0.3], [0.1 + 0.2, 0.3, 0.3, 0.3]])
    std = np.sqrt(3) / 4
    np.testing.assert_allclose(ADVANTAGES["std"](rewards)[0], np.array([0.75, -0.25, -0.25, -0.25]) / std)
    np.testing.assert_allclose(ADVANTAGES["none"](rewards)[0], [0.75, -0.25, -0.25, -0.25])
    for name in ADVANTAGES:
        assert not ADVANTAGES[name](rewards)[1:].any()  # not even where only rounding differs
    assert zero_variance(rewards).tolist() == [False, True, True]


def test_the_baseline_is_the_mean_of_the_others(random):
    np.testing.assert_allclose(
        leave_one_out(np.array([[1.0, 0.0, 0.0, 0.0]])), [[1, -1 / 3, -1 / 3, -1 / 3]], rtol=1e-15
    )
    rewards = random.normal(0, 1, (3, 5))
    found = leave_one_out(rewards)
    for group in range(3):
        for i in range(5):
            assert found[group, i] == pytest.approx(rewards[group, i] - np.delete(rewards[group], i).mean(), abs=1e-14)


def test_a_completion_is_one_action(random):
    """The ratio is the product over the tokens; in the first update the gradient is that of REINFORCE, -A ∇ log p(completion)."""
    old, advantage = random.normal(-2, 1, 6), random.normal(0, 1, 3)
    weights = per_sequence(LENGTHS, 8, {"completions": 3.0})[OWNER]

    def loss(log_probs):
        ratio = completion_ratio(log_probs - tensor(old), paddle.to_tensor(OWNER), tensor(LENGTHS))
        return (clipped_loss(ratio, tensor(advantage[OWNER]), 0.2, 0.2)[0] * tensor(weights)).sum()

    log_probs = tensor(old, grad=True)
    found = loss(log_probs)
    assert float(found) == pytest.approx(-advantage.mean(), abs=1e-15)
    found.backward()
    np.testing.assert_allclose(log_probs.grad.numpy(), -advantage[OWNER] / 3, rtol=1e-12)
    moved = old + 0.02
    ratios = np.exp(0.02 * LENGTHS)
    assert float(loss(tensor(moved))) == pytest.approx(-(ratios * advantage).mean(), rel=1e-12)


def test_group_gradient_points_at_the_best_arm_of_a_bandit():
    """Exact expectation over groups of one-token completions: the policy goes to the arm that pays most."""
    logits = tensor([0.0, 0.0, 0.0], grad=True)
    pays = np.array([0.2, 1.0, 0.5])
    generator = np.random.default_rng(0)
    for _ in range(300):
        with paddle.no_grad():
            p = paddle.nn.functional.softmax(logits).numpy()
        arms = generator.choice(3, size=(16, 8), p=p / p.sum())
        advantage = ADVANTAGES["none"](pays[arms])
        log_p = paddle.nn.functional.log_softmax(logits).gather(paddle.to_tensor(arms.reshape(-1)))
        loss, _ = clipped_loss(paddle.exp(log_p - log_p.detach()), tensor(advantage.reshape(-1)), 0.2, 0.28)
        loss.mean().backward()
        with paddle.no_grad():
            logits = tensor(logits.numpy() - 0.5 * logits.grad.numpy(), grad=True)
    assert int(np.argmax(logits.numpy())) == 1
    assert float(paddle.nn.functional.softmax(logits)[1]) > 0.9


def test_mixed_importance_sampling_in_figures():
    """Three tokens of one completion: the ratio of the sequence is 1, and one token was sampled by another distribution."""
    new, old, kappa = np.array([-1, -2, -0.5]), np.array([-1.1, -1.8, -0.6]), np.array([0.905, 8.17, 1.02])
    owner, lengths = paddle.to_tensor([0, 0, 0]), tensor([3])
    token, sequence = (RATIOS[name](tensor(new - old), owner, lengths).numpy() for name in ("token", "sequence"))
    np.testing.assert_allclose(token, [1.105, 0.819, 1.105], atol=5e-4)
    np.testing.assert_allclose(sequence, [1, 1, 1], atol=1e-12)
    factor = mismatch_factor(tensor(old), tensor(old - np.log(kappa)), 0.5, 5.0)
    np.testing.assert_allclose(factor.numpy(), [0.905, 0, 1.02], rtol=1e-12)
    # without bounds, and with a sampler that says what the learner says, nothing changes
    np.testing.assert_allclose(mismatch_factor(tensor(old), tensor(old), 0.5, 5.0).numpy(), [1, 1, 1])
    assert mismatch_factor(tensor(old), tensor(old - np.log(kappa)), 0.0, np.inf).numpy() == pytest.approx(kappa)
    assert mismatch_factor(tensor(old), tensor([0.0, 0.0, 0.0]), 0.5, 5.0).numpy().tolist() == [1, 1, 1]
    # a completion of one token has the ratio of PPO
    one = paddle.to_tensor([0]), tensor([1])
    assert RATIOS["sequence"](tensor([0.3]), *one).item() == RATIOS["token"](tensor([0.3]), *one).item()
