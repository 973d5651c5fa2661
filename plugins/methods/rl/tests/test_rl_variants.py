"""RLOO and online DPO over the toy model, each against its formula."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance import toy_model
from erniecore_preference.encoder import CHOSEN, REJECTED
from erniecore_rl.batches import completions_of
from erniecore_rl.objective import GrpoObjective
from erniecore_rl.online_dpo import OnlineDpoObjective
from erniecore_rl.rloo import RlooObjective
from erniecore_rl.upo import UpoObjective
from rl_rollouts import by_bytes, conversation, encoded, learned, objective


def another_model():
    """A reference that is not the policy."""
    made = toy_model()
    with paddle.no_grad():
        paddle.assign(made.lm_head.weight * 1.5, output=made.lm_head.weight)
    return made


def given():
    return [encoded([conversation("q"), conversation("rs")])]


def scores(seen):
    def score(completions):
        seen.extend(by_bytes(completions))
        return by_bytes(completions)

    return score


def sums(batch, name, completions):
    return np.bincount(completions.owner, batch.fields[name].reshape(-1)[completions.where])


# ---- RLOO


def test_rloo_has_the_gradient_of_reinforce_with_the_others_as_baseline():
    """The divergence is part of the reward: R = reward - kl (log π0 - log π_ref) of the whole completion."""
    seen = []
    made = objective(RlooObjective, score=scores(seen), reference=another_model(), kl=0.3)
    (batch,) = made.prepare(given(), step=1, seed=9)
    found = completions_of(batch)
    divergence = sums(batch, "old", found) - sums(batch, "reference", found)
    assert np.abs(divergence).max() > 0.1
    # samples are sorted by length, a group stays together: its rewards follow from which group it is
    rewards = np.array(seen).reshape(2, 4)
    expected = []
    for group in range(2):
        R = rewards[group] - 0.3 * divergence.reshape(2, 4)[group]
        expected += [R[i] - np.delete(R, i).mean() for i in range(4)]
    advantage = sums(batch, "advantage", found) / found.lengths
    np.testing.assert_allclose(advantage, expected, atol=1e-9)

    _, loss, gradient = learned(made, [batch])
    assert loss == pytest.approx(0, abs=1e-6)  # these advantages add up to 0
    log_probs, _ = made._log_probs(made.policy, batch, found)
    weights = paddle.to_tensor(-np.asarray(expected)[found.owner] / 8)
    (log_probs * weights).sum().astype("float32").backward()
    np.testing.assert_allclose(gradient, made.policy.lm_head.weight.grad.numpy(), atol=1e-6)


@pytest.mark.parametrize("kind", [RlooObjective, OnlineDpoObjective])
def test_micro_batches_change_nothing(kind):
    expected, found = [], []
    for size, into in ((64, expected), (1, found)):
        made = objective(kind, reference=another_model(), learn_batch_size=size)
        batches = made.prepare(given(), step=1, seed=9)
        into += learned(made, batches)
        assert len(batches) == (1 if size == 64 else 2)
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], abs=1e-6)
    np.testing.assert_allclose(found[2], expected[2], atol=1e-6)


def test_rloo_needs_no_reference_without_kl():
    made = objective(RlooObjective, kl=0.0)
    (batch,) = made.prepare(given(), step=1, seed=9)
    assert "reference" not in batch.fields
    assert learned(made, [batch])[2].any()


# ---- online DPO


def test_online_dpo_is_the_pair_term_of_upo_alone():
    reference = another_model()
    steps = {}
    for kind, more in ((GrpoObjective, {}), (UpoObjective, {"pair_weight": 1.0}), (OnlineDpoObjective, {})):
        made = objective(kind, reference=reference, **more)
        steps[kind] = learned(made, made.prepare(given(), step=1, seed=9))
    assert steps[OnlineDpoObjective][2].any()
    difference = steps[UpoObjective][2] - steps[GrpoObjective][2]
    np.testing.assert_allclose(steps[OnlineDpoObjective][2], difference, atol=1e-6)


@pytest.mark.parametrize("beta", [0.1, 0.7])
def test_online_dpo_follows_its_formula(beta):
    seen = []
    made = objective(OnlineDpoObjective, score=scores(seen), reference=another_model(), beta=beta)
    (batch,) = made.prepare(given(), step=1, seed=9)
    found = completions_of(batch)
    assert sorted(found.side.tolist()) == sorted([CHOSEN, REJECTED] * 2)
    log_probs, _ = made._log_probs(made.policy, batch, found)
    ratio = np.bincount(found.owner, log_probs.detach().numpy()) - sums(batch, "reference", found)
    z = ratio[found.side == CHOSEN] - ratio[found.side == REJECTED]
    _, loss, _ = learned(made, [batch])
    assert loss == pytest.approx(np.log1p(np.exp(-beta * z)).mean(), abs=1e-6)


def test_a_group_without_a_difference_is_no_pair():
    made = objective(OnlineDpoObjective, score=lambda completions: [0.5] * len(completions), reference=toy_model())
    (batch,) = made.prepare(given(), step=1, seed=9)
    output = made(batch, made.normalizers(batch))
    output.loss.backward()
    assert output.metrics["zero_variance"] == (2.0, 2.0)
    assert output.metrics["loss"] == (0.0, 0.0)
    assert "pairs/loss" not in output.metrics


@pytest.mark.parametrize("kind", [RlooObjective, OnlineDpoObjective])
def test_further_updates_continue_from_a_checkpoint(kind):
    made, again = (objective(kind, reference=another_model(), updates_per_rollout=2) for _ in range(2))
    made.prepare(given(), step=1, seed=9)
    again.load_carried(made.carried())
    one, two = (learned(m, m.prepare(given(), step=2, seed=10)) for m in (made, again))
    assert one[:2] == two[:2]
    assert (one[2] == two[2]).all()
