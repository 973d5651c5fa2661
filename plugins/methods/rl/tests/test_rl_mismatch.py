"""A sampler that is not the learner: rounded weights during rollouts, and what the loss makes of the mismatch."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance import toy_model
from erniecore_rl.precision import disturbed, inexact_weights, rounded_mantissa
from rl_rollouts import conversation, encoded, learned, objective


def by_formula(values, bits):
    mantissa, exponent = np.frexp(values.astype(np.float64))
    return np.ldexp(np.round(np.ldexp(mantissa, bits + 1)), exponent - bits - 1).astype(np.float32)


@pytest.mark.parametrize("bits", [1, 2, 3, 7, 10, 22])
def test_rounding_goes_to_the_nearest_value_and_ties_to_even(bits):
    ties = np.float32([1, 1.5, 1.25, 1.75, -1.25, 3, 5, 0, -0.0, 2**-20 * 1.25])
    values = np.concatenate([np.random.default_rng(0).normal(0, 1, 500).astype(np.float32), ties])
    found = rounded_mantissa(paddle.to_tensor(values), bits).numpy()
    np.testing.assert_array_equal(found, by_formula(values, bits))
    np.testing.assert_array_equal(rounded_mantissa(paddle.to_tensor(found), bits).numpy(), found)


def test_seven_bits_are_bfloat16():
    values = paddle.to_tensor(np.random.default_rng(0).normal(0, 1, 500).astype(np.float32))
    expected = values.astype("bfloat16").astype("float32").numpy()
    np.testing.assert_array_equal(rounded_mantissa(values, 7).numpy(), expected)


def failing_inside(model, before):
    with inexact_weights(model, mantissa=2):
        matrices = [p for p in model.parameters() if p.ndim > 1]
        assert all((p.numpy() == by_formula(p.numpy(), 2)).all() for p in matrices)
        assert any((p.numpy() != before[n]).any() for n, p in model.named_parameters())
        raise KeyError


def test_weights_come_back_bit_for_bit_even_after_an_error():
    model = toy_model()
    before = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    with pytest.raises(KeyError):
        failing_inside(model, before)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])


def test_noise_has_the_share_that_it_is_given_and_depends_on_the_seed():
    values = paddle.to_tensor(np.random.default_rng(0).normal(0, 3, (200, 300)).astype(np.float32))
    one, same, other = (disturbed(values, 0.1, np.random.default_rng(seed)).numpy() for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    assert (one - values.numpy()).std() == pytest.approx(0.1 * 3, rel=0.02)
    model, found = toy_model(), []
    before = model.lm_head.weight.numpy().copy()
    for seed in (1, 1, 2):
        with inexact_weights(model, noise=0.1, seed=seed):
            found.append(model.lm_head.weight.numpy().copy())
    np.testing.assert_array_equal(model.lm_head.weight.numpy(), before)
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()


def gap(batch):
    fields = batch.fields["sampled"] - batch.fields["old"]
    return np.abs(fields[batch.labels >= 0])


def test_rollouts_of_rounded_weights_have_a_gap_to_the_learner():
    given = [encoded([conversation(f"q{i}") for i in range(4)])]
    gaps = {}
    for bits in (0, 7, 1):
        (batch,) = objective(rollout_mantissa=bits).prepare(given, step=1, seed=9)
        gaps[bits] = gap(batch).max()
    assert gaps[0] < 1e-5 < gaps[7] < gaps[1]
    assert gaps[1] > 0.01
    (batch,) = objective(rollout_noise=0.3).prepare(given, step=1, seed=9)
    assert gap(batch).max() > 0.01


def test_a_sampler_that_is_the_learner_leaves_gspo_as_it_is():
    """No token is weighted or left out, whatever the bounds: loss and gradient to the bit."""
    given = [encoded([conversation(f"q{i}") for i in range(4)])]
    plain, mixed = (objective(mismatch=m, ratio="sequence", updates_per_rollout=2) for m in ((), (0.0, 1e9)))
    (batch,) = plain.prepare(given, step=1, seed=9)
    batch.fields["sampled"] = batch.fields["old"].copy()
    for made in (plain, mixed):
        made.policy.lm_head.weight.set_value(made.policy.lm_head.weight * 1.1)  # a second update: the ratio is not 1
    (_, one, first), (_, two, second) = learned(plain, [batch]), learned(mixed, [batch])
    assert one == two
    np.testing.assert_array_equal(first, second)
    assert first.any()


def test_the_learner_corrects_what_the_sampler_did():
    """Token terms are multiplied by π_learner / π_sampler, so their expectation is that of the learner's own samples."""
    given = [encoded([conversation(f"q{i}") for i in range(4)])]
    plain, mixed = (objective(rollout_mantissa=1, mismatch=m, ratio="sequence") for m in ((), (0.0, 1e9)))
    (batch,) = plain.prepare(given, step=1, seed=9)
    (same,) = mixed.prepare(given, step=1, seed=9)
    np.testing.assert_array_equal(batch.input_ids, same.input_ids)
    assert plain.normalizers(batch) == mixed.normalizers(same)
    found, expected = learned(mixed, [same])[2], learned(plain, [batch])[2]
    assert np.abs(found - expected).max() > 1e-5
    # the same completions with every token term weighted by hand
    kappa = np.exp(batch.fields["old"] - batch.fields["sampled"])
    batch.fields["advantage"] *= kappa
    np.testing.assert_allclose(learned(plain, [batch])[2], found, atol=1e-7)
