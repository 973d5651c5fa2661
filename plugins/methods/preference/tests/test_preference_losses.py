"""The losses against golden numbers, closed forms and float64 formulas of our own."""

import json
import math
import warnings
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_preference import config as sections
from erniecore_preference.losses import LOSSES, Pairs, kto
from erniecore_preference.plugin import KtoPlugin, PairPlugin

LOSS_FILES = Path(__file__).parents[4] / "tests" / "fixtures" / "losses"
FAMILY, SIMPO, ORPO, KTO = (
    json.loads((LOSS_FILES / f"{name}.json").read_text()) for name in ("dpo_family", "simpo_cpo", "orpo", "kto")
)
OURS = {"sigmoid": "dpo", "hinge": "hinge", "ipo": "ipo", "robust": "robust", "nca_pair": "nca", "sppo_hard": "sppo"}
CONFIGS = {plugin.name: plugin.Config for plugin in PairPlugin.__subclasses__()}


def tensor(values):
    found = paddle.to_tensor(np.asarray(values, np.float64))
    found.stop_gradient = False
    return found


def pairs_of(chosen, rejected, reference_chosen=None, reference_rejected=None, lengths=None, margin=None):
    """Pairs of log-probabilities; no reference counts as 0."""
    zero = np.zeros(len(chosen))
    c0, r0 = (zero if x is None else x for x in (reference_chosen, reference_rejected))
    lengths = ([1.0] * len(chosen),) * 2 if lengths is None else lengths
    return Pairs(*map(tensor, (chosen, rejected, c0, r0, *lengths)), None if margin is None else tensor(margin))


def score(name, pairs, normalize="none", **settings):
    """Losses per pair, and gradients of their mean."""
    scored = LOSSES[name](pairs.normalized(normalize), CONFIGS[name](**settings))
    scored.loss.mean().backward()
    return scored.loss.numpy(), pairs.chosen.grad.numpy(), pairs.rejected.grad.numpy()


def golden_pairs():
    names = ("policy_chosen_logps", "policy_rejected_logps", "reference_chosen_logps", "reference_rejected_logps")
    given = FAMILY["inputs"]
    return pairs_of(*(given[n] for n in names), (given["chosen_lengths"], given["rejected_lengths"]))


@pytest.mark.parametrize("case", [n for n, c in FAMILY["cases"].items() if c["hyper"]["loss_type"] in OURS])
def test_family_equals_golden_numbers(case):
    expected = FAMILY["cases"][case]
    hyper = dict(expected["hyper"])
    name = OURS[hyper.pop("loss_type")]
    mean = name == "ipo" and hyper.pop("length_normalised", True)
    found = score(name, golden_pairs(), "mean" if mean else "none", **hyper)
    for value, key in zip(
        found, ("per_pair_loss", "grad_policy_chosen_logps", "grad_policy_rejected_logps"), strict=True
    ):
        np.testing.assert_allclose(value, expected[key], rtol=1e-9, atol=1e-12)
    assert found[0].mean() == pytest.approx(expected["loss"], rel=1e-9)


@pytest.mark.parametrize("case", [n for n in SIMPO["cases"] if n.startswith("simpo")])
def test_simpo_equals_golden_numbers(case):
    expected, given = SIMPO["cases"][case], SIMPO["inputs"]
    hyper, lengths = expected["hyper"], [np.array(given[f"{k}_lengths"], float) for k in ("chosen", "rejected")]
    pairs = pairs_of(given["sum_chosen"], given["sum_rejected"], lengths=lengths)
    settings = {"beta": hyper["beta"], "gamma": hyper["simpo_gamma"], "label_smoothing": hyper["label_smoothing"]}
    loss, chosen, rejected = score("simpo", pairs, **settings)
    np.testing.assert_allclose(loss, expected["per_pair_loss"], rtol=1e-9)
    np.testing.assert_allclose(chosen * lengths[0], expected["grad_policy_chosen_logps"], rtol=1e-9)
    np.testing.assert_allclose(rejected * lengths[1], expected["grad_policy_rejected_logps"], rtol=1e-9)


@pytest.mark.parametrize("case", ORPO["cases"])
def test_orpo_equals_golden_numbers(case):
    expected, given = ORPO["cases"][case], ORPO["inputs"]
    beta = expected["hyper"]["beta"]
    loss, chosen, rejected = score("orpo", pairs_of(given["average_chosen"], given["average_rejected"]), beta=beta)
    np.testing.assert_allclose(-loss, expected["per_pair_beta_times_log_sigmoid"], rtol=1e-6)
    np.testing.assert_allclose(chosen, expected["grad_average_chosen"], rtol=1e-6)
    np.testing.assert_allclose(rejected, expected["grad_average_rejected"], rtol=1e-6)
    assert expected["nll_given"] + loss.mean() == pytest.approx(expected["loss_total"], rel=1e-6)


def orpo_gradients(chosen, rejected, beta):
    """In 50 decimal digits: d/dc = -b σ(-δ) / (1 - e^c) / n, d/dr = b σ(-δ) / (1 - e^r) / n, δ the log odds ratio."""
    with localcontext() as context:
        context.prec = 50
        found = []
        for c, r in zip(map(Decimal, chosen), map(Decimal, rejected), strict=True):
            delta = (c - (1 - c.exp()).ln()) - (r - (1 - r.exp()).ln())
            pull = Decimal(beta) / (1 + delta.exp()) / len(chosen)
            found.append((float(-pull / (1 - c.exp())), float(pull / (1 - r.exp()))))
    return np.array(found).T


@pytest.mark.parametrize("case", ORPO["cases"])
def test_orpo_gradients_are_exact(case):
    given, beta = ORPO["inputs"], ORPO["cases"][case]["hyper"]["beta"]
    exact = orpo_gradients(given["average_chosen"], given["average_rejected"], beta)
    found = score("orpo", pairs_of(given["average_chosen"], given["average_rejected"]), beta=beta)[1:]
    np.testing.assert_allclose(found, exact, rtol=1e-12)


@pytest.mark.parametrize("case", [n for n, c in KTO["cases"].items() if "kl" in c])
def test_kto_equals_golden_numbers(case):
    expected, given = KTO["cases"][case], KTO["inputs"]
    hyper = {k: v for k, v in expected["hyper"].items() if k != "loss_type"}
    labels = [case.startswith("only_desirable")] * 6 if case.startswith("only") else given["labels"]
    which = "negative" if case.startswith("kl_negative") else "positive"
    kl = tensor(np.mean(np.array(given[f"policy_KL_logps_{which}"]) - given["reference_KL_logps"]))
    if "apo_zero" in case:
        kl = kl * 0
    policy = tensor(given["policy_logps"])
    losses, rewards = kto(
        policy - tensor(given["reference_logps"]), paddle.to_tensor(labels), kl, sections.KtoConfig(**hyper)
    )
    losses.mean().backward()
    assert float(losses.mean()) == pytest.approx(expected["loss"], rel=1e-9)
    np.testing.assert_allclose(policy.grad.numpy(), expected["grad_policy_logps"], rtol=1e-9, atol=1e-15)
    ratio = np.subtract(given["policy_logps"], given["reference_logps"])
    np.testing.assert_allclose(rewards.numpy(), hyper["beta"] * ratio, rtol=1e-12)


#: log-probabilities -10, -12 under the policy, -11, -11.5 under the reference, lengths 8 and 10: computed by hand
@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("dpo", {}, 0.6209570),
        ("dpo", {"beta": 0.5}, 0.3868710),
        ("dpo", {"label_smoothing": 0.1}, 0.6359570),
        ("robust", {"label_smoothing": 0.1}, 0.6022070),
        ("hinge", {}, 0.85),
        ("ipo", {}, 12.25),
        ("simpo", {"beta": 2.0, "gamma": 0.5}, 1.0374880),
        ("orpo", {"beta": 1.0}, 0.7291751),
        ("kto-pair", {}, (0.4750208 + 0.4625702) / 2),
        ("sppo", {}, 36.25),
        ("nca", {}, 1.3508248),
    ],
)
def test_one_pair_by_hand(name, settings, expected):
    pairs = pairs_of([-10.0], [-12.0], [-11.0], [-11.5], ([8.0], [10.0]))
    assert score(name, pairs, **settings)[0][0] == pytest.approx(expected, abs=5e-8)


@pytest.mark.parametrize(("outside", "expected"), [(False, 0.7926529), (True, 2.6881597)])
def test_dpop_penalty_inside_or_outside_of_the_sigmoid(outside, expected):
    pairs = pairs_of([-11.4], [-12.0], [-11.0], [-11.5])
    loss, _, _ = score("dpop", pairs, penalty=5.0, penalty_outside=outside)
    assert loss[0] == pytest.approx(expected, abs=5e-8)


# ---- float64 formulas of our own, and their slopes by differences


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def formula_dpo(c, r, c0, r0, margin):
    return -np.log(sigmoid(0.3 * (c - r - c0 + r0) - 0.2 * np.log(margin)))


def formula_robust(c, r, c0, r0, margin):
    x = 0.3 * (c - r - c0 + r0)
    return (-0.8 * np.log(sigmoid(x)) + 0.2 * np.log(sigmoid(-x))) / 0.6


def formula_dpop(c, r, c0, r0, margin):
    return -np.log(sigmoid(0.3 * (c - r - c0 + r0 - 7 * np.maximum(0, c0 - c))))


def formula_sppo(c, r, c0, r0, margin):
    return (c - c0 - 0.5 / 0.3) ** 2 + (r - r0 + 0.5 / 0.3) ** 2


def formula_nca(c, r, c0, r0, margin):
    good, bad = 0.3 * (c - c0), 0.3 * (r - r0)
    return -np.log(sigmoid(good)) - np.log(sigmoid(-good)) / 2 - np.log(sigmoid(-bad)) / 2


SETTINGS = {"dpo": {"offset_alpha": 0.2}, "robust": {"label_smoothing": 0.2}, "dpop": {"penalty": 7.0}}


@pytest.mark.parametrize("name", ["dpo", "robust", "dpop", "sppo", "nca"])
def test_values_and_gradients_equal_own_formulas(name):
    rng = np.random.default_rng(3)
    c, r, c0, r0 = -rng.uniform(1, 9, (4, 6))
    margin, formula, step = rng.uniform(0.2, 4, 6), globals()[f"formula_{name}"], 1e-6
    found = score(name, pairs_of(c, r, c0, r0, margin=margin), beta=0.3, **SETTINGS.get(name, {}))
    np.testing.assert_allclose(found[0], formula(c, r, c0, r0, margin), rtol=1e-9)
    by_c = (formula(c + step, r, c0, r0, margin) - formula(c - step, r, c0, r0, margin)) / (2 * step) / 6
    by_r = (formula(c, r + step, c0, r0, margin) - formula(c, r - step, c0, r0, margin)) / (2 * step) / 6
    np.testing.assert_allclose(found[1], by_c, atol=1e-7)
    np.testing.assert_allclose(found[2], by_r, atol=1e-7)


def test_kto_pair_equals_own_formula_with_constant_reference_points():
    rng = np.random.default_rng(4)
    c, r = rng.uniform(0.5, 2, (2, 5))
    loss, by_c, by_r = score("kto-pair", pairs_of(c, r), beta=0.3)
    good, bad = sigmoid(0.3 * (c - r.mean())), sigmoid(0.3 * (c.mean() - r))
    np.testing.assert_allclose(loss, (2 - good - bad) / 2, rtol=1e-9)
    np.testing.assert_allclose(by_c, -0.3 * good * (1 - good) / 10, rtol=1e-9)
    np.testing.assert_allclose(by_r, 0.3 * bad * (1 - bad) / 10, rtol=1e-9)


def test_kto_pair_of_a_single_micro_batch_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the suite's settings let warnings of paddle pass, a user sees them
        score("kto-pair", pairs_of([-3.0], [-5.0]), beta=0.3)


def test_kto_pair_reference_points_are_never_negative():
    loss, _, _ = score("kto-pair", pairs_of([-3.0], [-5.0]), beta=0.3)
    assert loss[0] == pytest.approx((2 - sigmoid(-0.9) - sigmoid(1.5)) / 2)


# ---- closed forms and options


@pytest.mark.parametrize("name", ["dpo", "robust", "dpop"])
def test_policy_equal_to_reference_costs_ln_2(name):
    pairs = pairs_of([-3.0, -7.0], [-4.0, -2.0], [-3.0, -7.0], [-4.0, -2.0])
    np.testing.assert_allclose(score(name, pairs)[0], math.log(2), rtol=1e-12)


def test_ipo_is_zero_at_its_margin_and_pulls_with_one_over_beta_at_none():
    loss, chosen, _ = score("ipo", pairs_of([-1.0], [-6.0]), beta=0.1)
    assert (loss[0], chosen[0]) == (0, 0)
    assert score("ipo", pairs_of([-1.0], [-1.0]), beta=0.1)[1][0] == pytest.approx(-10)


def test_offset_asks_for_more_where_the_margin_is_larger():
    margins = [0.5, 1.0, 4.0]
    loss, _, _ = score("dpo", pairs_of([0.0] * 3, [0.0] * 3, margin=margins), offset_alpha=0.7)
    np.testing.assert_allclose(loss, np.log1p(np.exp(0.7 * np.log(margins))), rtol=1e-12)


def test_robust_is_unbiased_under_flipped_labels():
    c, r = np.array([-2.0, -5.0]), np.array([-3.0, -1.0])
    clean = score("dpo", pairs_of(c, r))[0]
    kept = score("robust", pairs_of(c, r), label_smoothing=0.3)[0]
    flipped = score("robust", pairs_of(r, c), label_smoothing=0.3)[0]
    np.testing.assert_allclose(0.7 * kept + 0.3 * flipped, clean, rtol=1e-12)


def test_length_normalization():
    given = ([-8.0], [-30.0], [-6.0], [-20.0], ([4.0], [10.0]))
    for how, chosen, rejected in (("none", -2, -10), ("mean", -0.5, -1.0), ("balanced", -3.5, -7.0)):
        pairs = pairs_of(*given).normalized(how)
        assert (float(pairs.chosen_ratio[0]), float(pairs.rejected_ratio[0])) == pytest.approx((chosen, rejected))


@pytest.mark.parametrize("name", LOSSES)
def test_rewards_are_scaled_log_ratios(name):
    pairs = pairs_of([-8.0], [-30.0], [-6.0], [-20.0], ([4.0], [10.0]))
    if not hasattr(CONFIGS[name](), "length_normalization"):
        pairs = pairs_of([-8.0], [-30.0], lengths=([4.0], [10.0]))
    scored = LOSSES[name](pairs, CONFIGS[name](beta=0.5))
    expected = (-1.0, -5.0) if name not in ("simpo", "orpo") else (-1.0, -1.5)
    assert (float(scored.chosen_reward[0]), float(scored.rejected_reward[0])) == pytest.approx(expected)
    assert scored.chosen_reward.stop_gradient


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("sides", [(0.0, -1e5), (-1e5, 0.0), (0.0, 0.0), (-1e5, -1e5)])
def test_extreme_log_probabilities_stay_finite(name, sides):
    assert all(np.isfinite(x).all() for x in score(name, pairs_of([sides[0]], [sides[1]])))


def test_every_plugin_has_its_loss():
    assert set(CONFIGS) == set(LOSSES)
    assert KtoPlugin.name not in LOSSES
