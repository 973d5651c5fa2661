"""The divergences against numpy in float64, their limits, bounds and gradients."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_distill.chunked import Comparison, grouped, top_tokens
from erniecore_distill.divergences import DIVERGENCES, logaddexp
from hypothesis import given, settings
from hypothesis import strategies as st


def log_probabilities(seed, n=5, outcomes=7, scale=2.0):
    x = np.random.default_rng(seed).normal(size=(n, outcomes)) * scale
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def rel_entr(p, q):
    return p * np.log(p / q)


def expected(name, p, q, beta):
    m = beta * p + (1 - beta) * q
    return {
        "forward-kl": rel_entr(p, q).sum(-1),
        "reverse-kl": rel_entr(q, p).sum(-1),
        "jsd": beta * rel_entr(p, m).sum(-1) + (1 - beta) * rel_entr(q, m).sum(-1),
    }[name]


def found(name, log_p, log_q, beta=0.5):
    return DIVERGENCES[name](paddle.to_tensor(log_p), paddle.to_tensor(log_q), beta).numpy()


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_values_in_float64(name, beta):
    log_p, log_q = log_probabilities(0), log_probabilities(1)
    np.testing.assert_allclose(
        found(name, log_p, log_q, beta), expected(name, np.exp(log_p), np.exp(log_q), beta), rtol=1e-12
    )


@pytest.mark.parametrize("name", DIVERGENCES)
def test_equal_distributions_are_0_apart(name):
    log_p = log_probabilities(3)
    np.testing.assert_allclose(found(name, log_p, log_p), 0, atol=1e-15)


def test_closed_form_of_two_outcomes():
    log_p, log_q = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    assert found("forward-kl", log_p, log_q)[0] == pytest.approx(0.5 * np.log(4 / 3), rel=1e-12)
    assert found("jsd", np.log([[1.0, 1e-300]]), np.log([[1e-300, 1.0]]))[0] == pytest.approx(np.log(2), rel=1e-9)


def test_ends_of_jsd_are_the_two_divergences():
    log_p, log_q = log_probabilities(4), log_probabilities(5)
    low, high = (found("jsd", log_p, log_q, beta) for beta in (1e-7, 1 - 1e-7))
    np.testing.assert_allclose(low / 1e-7, found("forward-kl", log_p, log_q), rtol=1e-5)
    np.testing.assert_allclose(high / 1e-7, found("reverse-kl", log_p, log_q), rtol=1e-5)


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("top_k", [0, 3])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_gradient_in_float64(name, top_k, temperature):
    """Central differences over the student's logits."""
    theirs = paddle.to_tensor(np.random.default_rng(0).normal(size=(2, 6)))
    top = top_tokens(theirs, top_k, temperature) if top_k else None
    compare = Comparison(name, 0.3, temperature)

    def value(logits):
        log_q = paddle.nn.functional.log_softmax(logits / temperature, axis=-1)
        if top is None:
            return compare(paddle.nn.functional.log_softmax(theirs / temperature, axis=-1), log_q).sum()
        return compare(paddle.concat([top.log_p, top.rest], axis=-1), grouped(log_q, top.ids)).sum()

    start = np.random.default_rng(1).normal(size=(2, 6))
    logits = paddle.to_tensor(start, stop_gradient=False)
    value(logits).backward()
    numeric, step = np.zeros_like(start), 1e-5
    for place in np.ndindex(start.shape):
        sides = []
        for sign in (1, -1):
            moved = start.copy()
            moved[place] += sign * step
            sides.append(float(value(paddle.to_tensor(moved))))
        numeric[place] = (sides[0] - sides[1]) / (2 * step)
    np.testing.assert_allclose(logits.grad.numpy(), numeric, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), k=st.integers(1, 6), name=st.sampled_from(sorted(DIVERGENCES)))
def test_likeliest_tokens_are_a_lower_bound(seed, k, name):
    ours, theirs = (paddle.to_tensor(log_probabilities(seed + i, n=3)) for i in (0, 1))
    top = top_tokens(theirs, k, 1.0)
    part = DIVERGENCES[name](paddle.concat([top.log_p, top.rest], axis=-1), grouped(ours, top.ids), 0.4).numpy()
    whole = DIVERGENCES[name](theirs, ours, 0.4).numpy()
    assert (part <= whole + 1e-12).all()
    if k == 6:  # all tokens but one: nothing is lost
        np.testing.assert_allclose(part, whole, atol=1e-12)


def test_others_keep_their_digits_where_the_top_has_nearly_everything():
    logits = paddle.to_tensor([[60.0, 0.0, -1.0, 1.0]], dtype="float64")
    rest = float(grouped(paddle.nn.functional.log_softmax(logits, axis=-1), paddle.to_tensor([[0]]))[0, 1])
    assert rest == pytest.approx(np.log(1 + np.exp(-1) + np.exp(1)) - 60, rel=1e-12)


def test_ties_go_to_the_smaller_id():
    assert top_tokens(paddle.zeros([1, 9]), 4, 1.0).ids.tolist() == [[0, 1, 2, 3]]


def test_far_apart_is_finite():
    log_p, log_q = np.array([[0.0, -2e5]], np.float32), np.array([[-2e5, 0.0]], np.float32)
    for name in DIVERGENCES:
        assert np.isfinite(found(name, log_p, log_q)).all()
    assert float(logaddexp(paddle.to_tensor(-3e4), paddle.to_tensor(3e4))) == 3e4
