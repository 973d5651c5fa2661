"""Shuffles and blends without lists: bijections, exact shares at every length, each place on its own."""

import numpy as np
import pytest
from erniecore_token_files.order import blended, permuted
from hypothesis import given, settings
from hypothesis import strategies as st

SIZES = st.integers(1, 3000)
WEIGHTS = st.lists(st.integers(1, 500), min_size=1, max_size=6)


def shuffle(size, seed=0, purpose="x"):
    return permuted(np.arange(size), size, seed=seed, purpose=purpose)


@settings(deadline=None, max_examples=50)
@given(SIZES, st.integers(0, 2**32 - 1))
def test_a_shuffle_is_a_bijection(size, seed):
    assert sorted(shuffle(size, seed).tolist()) == list(range(size))


def test_a_place_does_not_depend_on_what_else_is_asked():
    full = shuffle(1000)
    assert [int(permuted(np.array([i]), 1000, seed=0, purpose="x")[0]) for i in (999, 0, 17)] == full[
        [999, 0, 17]
    ].tolist()


def test_seed_and_purpose_choose_the_shuffle():
    plain = shuffle(100).tolist()
    assert plain == shuffle(100).tolist()
    assert plain != shuffle(100, seed=1).tolist()
    assert plain != shuffle(100, purpose="y").tolist()


def test_every_item_is_as_often_in_every_place():
    seeds, size = 4000, 6
    counts = np.zeros((size, size))
    for seed in range(seeds):
        counts[np.arange(size), shuffle(size, seed)] += 1
    expected = seeds / size
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_neighbors_are_torn_apart():
    order = shuffle(5000)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(np.arange(5000), order)[0, 1]) < 0.05


def test_a_huge_size_costs_nothing():
    places = permuted(np.arange(8), 10**15, seed=0, purpose="x")
    assert len(set(places.tolist())) == 8
    assert places.max() < 10**15


def test_a_place_outside_is_refused():
    with pytest.raises(ValueError, match="outside"):
        permuted(np.array([3]), 3, seed=0, purpose="x")


@settings(deadline=None, max_examples=50)
@given(WEIGHTS, st.integers(1, 400))
def test_every_beginning_of_a_blend_has_the_shares(weights, length):
    sources, ranks = blended(weights, np.arange(length))
    for source, weight in enumerate(weights):
        mine = sources == source
        assert ranks[mine].tolist() == list(range(mine.sum()))
        exact = np.arange(1, length + 1) * weight / sum(weights)
        assert np.abs(np.cumsum(mine) - exact).max() < max(len(weights), 1)


@settings(deadline=None, max_examples=50)
@given(WEIGHTS)
def test_whole_weights_are_met_exactly(weights):
    sources, _ = blended(weights, np.arange(sum(weights)))
    assert np.bincount(sources, minlength=len(weights)).tolist() == weights


def test_a_place_of_a_blend_stands_alone():
    weights = [0.3, 0.7, 1e-4]
    sources, ranks = blended(weights, np.arange(3000))
    for place in (0, 1234, 2999):
        source, rank = blended(weights, np.array([place]))
        assert (source[0], rank[0]) == (sources[place], ranks[place])


def test_a_source_without_weight_never_comes():
    assert set(blended([2, 0, 1], np.arange(50))[0].tolist()) == {0, 2}
