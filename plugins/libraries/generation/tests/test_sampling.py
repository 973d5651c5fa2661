"""Each function against a plain float64 reference, and the edges: ties, k > V, p = 1, tiny p, temperature 0."""

import numpy as np
import pytest
from erniecore_generation import sampling as s
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from erniecore.errors import NumericsError, UsageError

some_logits = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=st.floats(-20, 20, width=32)
)


def reference_probabilities(row):
    exps = [float(np.exp(float(x) - max(map(float, row)))) if x > -np.inf else 0.0 for x in row]
    return [e / sum(exps) for e in exps]


def ranked(row):
    """Token ids from the most likely down, lower ids first among equals."""
    return sorted(range(len(row)), key=lambda i: (-float(row[i]), i))


def kept(logits):
    return [set(np.flatnonzero(row > -np.inf).tolist()) for row in logits]


@given(some_logits)
def test_softmax_equals_the_reference(logits):
    for row, got in zip(logits, s.softmax(logits), strict=True):
        np.testing.assert_allclose(got, reference_probabilities(row), rtol=1e-12)


@given(some_logits, st.integers(1, 12))
def test_top_k_keeps_exactly_the_k_most_likely(logits, k):
    assert kept(s.keep_top_k(logits, k)) == [set(ranked(row)[:k]) for row in logits]


def test_top_k_zero_is_off_and_ties_keep_lower_ids():
    logits = np.array([[1.0, 2.0, 2.0, 2.0]])
    assert kept(s.keep_top_k(logits, 0)) == [{0, 1, 2, 3}]
    assert kept(s.keep_top_k(logits, 2)) == [{1, 2}]


@given(some_logits, st.floats(0.01, 0.999))
def test_top_p_is_the_smallest_set_with_that_probability(logits, p):
    for row, got in zip(logits, kept(s.keep_top_p(logits, p)), strict=True):
        probabilities = reference_probabilities(row)
        total = sum(probabilities[i] for i in got)
        order = ranked(row)
        assert got == set(order[: len(got)])
        assert total >= p - 1e-9
        assert total - probabilities[order[len(got) - 1]] < p + 1e-9


@pytest.mark.parametrize(("p", "expected"), [(1.0, {0, 1, 2}), (0.0, {1}), (1e-12, {1}), (0.5, {1}), (0.95, {1, 2})])
def test_top_p_edges(p, expected):
    logits = np.log(np.array([[0.04, 0.66, 0.30]]))
    assert kept(s.keep_top_p(logits, p)) == [expected]


def test_top_p_of_equal_logits_prefers_lower_ids():
    assert kept(s.keep_top_p(np.zeros((1, 4)), 0.5)) == [{0, 1}]


@pytest.mark.parametrize("p", [0.0, 0.3, 0.8, 0.999, 1 - 1e-12])
@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0, 30.0])
@pytest.mark.parametrize("top_k", [0, 7, 2000])
def test_top_p_of_a_large_vocabulary_is_what_sorting_all_of_it_gives(p, spread, top_k):
    logits = np.random.default_rng(1).normal(size=(4, 5000)) * spread
    logits[2:] = logits[2:].round(2)  # many of them equal
    logits = s.keep_top_k(logits, top_k)
    got = s.keep_top_p(logits, p)
    order = np.argsort(-logits, axis=-1, kind="stable")
    shares = np.take_along_axis(s.softmax(logits), order, axis=-1)
    wanted = np.cumsum(shares, axis=-1) - shares < p
    wanted[:, 0] = True
    expected = np.full_like(logits, -np.inf)
    np.put_along_axis(expected, order, np.where(wanted, np.take_along_axis(logits, order, axis=-1), -np.inf), axis=-1)
    np.testing.assert_array_equal(got, expected)


@given(some_logits, st.floats(0.001, 1))
def test_min_p_compares_with_the_best_token(logits, p):
    for row, got in zip(logits, kept(s.keep_min_p(logits.astype(np.float64), p)), strict=True):
        probabilities = reference_probabilities(row)
        for i, probability in enumerate(probabilities):
            ratio = probability / max(probabilities)
            if abs(ratio - p) > 1e-9:
                assert (i in got) == (ratio > p)
        assert ranked(row)[0] in got


def test_temperature_divides_and_a_tiny_one_stays_finite():
    logits = np.array([[1.0, 3.0, 2.0]])
    np.testing.assert_allclose(
        s.softmax(s.scale_temperature(logits, 0.5))[0], reference_probabilities(logits[0] / 0.5), rtol=1e-12
    )
    np.testing.assert_array_equal(s.softmax(s.scale_temperature(logits, 1e-300)), [[0, 1, 0]])


def test_repetition_penalty_always_makes_a_seen_token_less_likely():
    got = s.penalize_repetition(np.array([[4.0, -4.0, 4.0]]), np.array([[True, True, False]]), 2.0)
    np.testing.assert_array_equal(got, [[2.0, -8.0, 4.0]])


def test_frequency_counts_and_presence_does_not():
    got = s.penalize_counts(np.array([[1.0, 1.0, 1.0]]), np.array([[0, 1, 3]]), 0.1, 0.5)
    np.testing.assert_allclose(got, [[1.0, 0.4, 0.2]])


def test_history_separates_prompt_and_completion():
    history = s.History([[1, 1], [2]], 4)
    history.add(np.array([3, 2]))
    history.add(np.array([3, 0]))
    assert history.prompt.tolist() == [[False, True, False, False], [False, False, True, False]]
    assert history.completion.tolist() == [[0, 0, 0, 2], [1, 0, 1, 0]]
    history.keep(np.array([1]))
    assert history.completion.tolist() == [[1, 0, 1, 0]]


def test_frequency_penalty_ignores_the_prompt_and_repetition_does_not():
    history = s.History([[0]], 2)
    logits = np.array([[2.0, 1.9]], dtype=np.float32)
    assert s.choose(logits, s.Sampling(frequency_penalty=2.0), history=history).tolist() == [0]
    assert s.choose(logits, s.Sampling(repetition_penalty=2.0), history=history).tolist() == [1]


@given(hnp.arrays(np.float64, (3, 5), elements=st.floats(0, 1)), st.floats(0, 1, exclude_max=True))
def test_draw_inverts_the_cumulative_distribution(weights, number):
    weights[:, 2] += 0.5
    weights[:, 4] = 0.0
    probabilities = weights / weights.sum(axis=-1, keepdims=True)
    for row, got in zip(probabilities, s.draw(probabilities, np.full(3, number)), strict=True):
        below = float(np.sum(row[:got]))
        assert below <= number * row.sum() + 1e-12
        assert number * row.sum() <= below + row[got] + 1e-12
        assert row[got] > 0


def test_draw_at_the_top_end_never_takes_an_impossible_token():
    probabilities = np.array([[0.3, 0.7, 0.0]])
    assert s.draw(probabilities, np.array([np.nextafter(1.0, 0.0)])).tolist() == [1]
    assert s.draw(np.array([[0.0, 1.0]]), np.array([0.0])).tolist() == [1]


def test_uniforms_are_a_pure_function_of_seed_stream_and_step():
    base = s.uniforms(7, [0, 1, 2], 5)
    np.testing.assert_array_equal(base[1:], s.uniforms(7, [1, 2], 5))
    others = [s.uniforms(8, [0], 5)[0], s.uniforms(7, [0], 6)[0], s.uniforms(7, [1], 5)[0]]
    assert base[0] not in others


def test_uniforms_of_neighboring_steps_and_streams_are_uniform():
    numbers = np.concatenate([s.uniforms(3, range(40), step) for step in range(50)])
    assert len(set(numbers.tolist())) == len(numbers)
    np.testing.assert_allclose(np.histogram(numbers, bins=10, range=(0, 1))[0], 200, atol=60)


def test_drawn_frequencies_follow_the_probabilities():
    logits = np.log(np.array([[0.5, 0.3, 0.2]])).repeat(3000, axis=0)
    chosen = s.choose(logits, s.Sampling(do_sample=True, seed=1), streams=range(3000))
    np.testing.assert_allclose(np.bincount(chosen, minlength=3) / 3000, [0.5, 0.3, 0.2], atol=0.03)


@pytest.mark.parametrize("sampling", [s.Sampling(), s.Sampling(do_sample=True, temperature=0.0)])
def test_greedy_takes_the_lowest_id_of_equal_maxima(sampling):
    assert s.choose(np.array([[0.0, 5.0, 5.0]]), sampling, streams=[0]).tolist() == [1]


@pytest.mark.parametrize("option", [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}, {"temperature": 1e-9}])
def test_the_narrowest_options_equal_greedy(option):
    logits = np.random.default_rng(0).normal(size=(20, 50)).astype(np.float32)
    got = s.choose(logits, s.Sampling(do_sample=True, **option), streams=range(20))
    np.testing.assert_array_equal(got, s.choose(logits, s.Sampling()))


def test_options_combine_in_the_documented_order():
    # top-k first leaves {0, 1} with probabilities .6 and .4, so top-p 0.5 keeps token 0 only
    logits = np.log(np.array([[0.36, 0.24, 0.20, 0.20]])).repeat(200, axis=0)
    sampling = s.Sampling(do_sample=True, top_k=2, top_p=0.5)
    assert set(s.choose(logits, sampling, streams=range(200)).tolist()) == {0}


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": -0.1}, {"top_k": -1}, {"top_p": 1.1}, {"min_p": -0.1}, {"repetition_penalty": 0.0},
        {"frequency_penalty": 2.5}, {"presence_penalty": -3.0}, {"seed": -1}, {"temperature": float("nan")},
    ],
)  # fmt: skip
def test_values_out_of_range_are_named(field):
    with pytest.raises(UsageError, match=next(iter(field))):
        s.Sampling(**field)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_an_error(bad):
    with pytest.raises(NumericsError, match="row 1, step 4"):
        s.choose(np.array([[0.0, 1.0], [0.0, bad]]), s.Sampling(), step=4)


def test_a_masked_token_is_allowed_but_an_empty_row_is_not():
    assert s.choose(np.array([[-np.inf, 0.0]]), s.Sampling(do_sample=True), streams=[0]).tolist() == [1]
    with pytest.raises(NumericsError):
        s.choose(np.full((1, 3), -np.inf), s.Sampling())
