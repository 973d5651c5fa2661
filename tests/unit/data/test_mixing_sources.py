"""What an epoch takes of several sources: exact counts, nothing lost, nothing repeated but as stated."""

from collections import Counter
from fractions import Fraction
from math import ceil, floor

import numpy as np
import pytest
from erniecore_sampler.mixing import Mix, epoch_order, num_samples, stretches
from erniecore_sampler.order import shares
from hypothesis import given
from hypothesis import strategies as st

from erniecore.config.core import DataSection

KINDS = ["concat", "weighted", "interleave-under", "interleave-over"]
SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=4)
WEIGHTS = st.lists(st.integers(1, 40).map(lambda n: n / 10), min_size=4, max_size=4).map(tuple)
EPOCHS = st.lists(st.sampled_from([0.1, 0.3, 0.5, 1.0, 2.0, 2.5]), min_size=4, max_size=4).map(tuple)


def mixes(kind, sizes, weights, epochs, epoch_samples=0):
    return Mix(kind, weights[: len(sizes)], epochs[: len(sizes)], epoch_samples)


def by_source(order, sizes):
    """Indices within each source, in the order in which they come."""
    starts = np.cumsum([0, *sizes])
    owner = np.searchsorted(starts, order, side="right") - 1
    return [[int(i - starts[k]) for i, o in zip(order, owner, strict=True) if o == k] for k in range(len(sizes))]


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6), st.integers(0, 1000))
def test_shares_sum_up_and_are_fair(weights, total):
    counts = shares(weights, total)
    assert sum(counts) == total
    assert all(abs(c - w / sum(weights) * total) < 1 for c, w in zip(counts, weights, strict=True))


@given(st.sampled_from(KINDS), SIZES, WEIGHTS, EPOCHS, st.booleans(), st.sampled_from([0, 1, 17]))
def test_over_the_epochs_each_source_is_walked_round_and_round(kind, sizes, weights, epochs, shuffle, length):
    """However epochs are cut: a source's samples of several epochs in a row are whole rounds and the beginning of one."""
    mix = mixes(kind, sizes, weights, epochs, length if kind in ("concat", "weighted") else 0)
    seen = [Counter() for _ in sizes]
    for epoch in range(5):
        order = epoch_order(sizes, mix, shuffle=shuffle, seed=3, epoch=epoch)
        assert len(order) == num_samples(sizes, mix, epoch)
        for counter, part in zip(seen, by_source(order, sizes), strict=True):
            counter.update(part)
        for size, counter in zip(sizes, seen, strict=True):
            counts = [counter[i] for i in range(size)]
            assert not counts or max(counts) - min(counts) <= 1


@given(SIZES, EPOCHS)
def test_concat_takes_exactly_the_epochs_of_each_source(sizes, epochs):
    mix = mixes("concat", sizes, (1.0,) * 4, epochs)
    for done in range(1, 6):
        taken = [sum(stretches(sizes, mix, e)[i][1] for e in range(done)) for i in range(len(sizes))]
        assert taken == [floor(done * Fraction(str(x)) * n) for x, n in zip(epochs, sizes, strict=False)]


@given(SIZES, st.booleans(), st.integers(0, 4))
def test_concat_is_every_sample_once(sizes, shuffle, epoch):
    order = epoch_order(sizes, Mix(), shuffle=shuffle, seed=1, epoch=epoch).tolist()
    assert sorted(order) == list(range(sum(sizes)))
    assert shuffle or order == sorted(order)


@given(SIZES.filter(any), WEIGHTS)
def test_weighted_is_as_long_as_everything_and_split_by_weight(sizes, weights):
    mix = mixes("weighted", sizes, weights, ())
    counts = [count for _, count in stretches(sizes, mix, 0)]
    used = [w for w, n in zip(weights, sizes, strict=False) if n]
    assert sum(counts) == sum(sizes)
    assert all(abs(c - w / sum(used) * sum(sizes)) < 1 for c, w, n in zip(counts, weights, sizes, strict=False) if n)


@given(SIZES.filter(any), WEIGHTS)
def test_interleave_under_ends_with_the_first_source_that_is_used_up(sizes, weights):
    counts = [count for _, count in stretches(sizes, mixes("interleave-under", sizes, weights, ()), 0)]
    exact = [Fraction(str(w)) for w in weights]
    draws = min(n / w for n, w in zip(sizes, exact, strict=False) if n)
    assert all(count <= n for count, n in zip(counts, sizes, strict=True))
    assert any(count == n for count, n in zip(counts, sizes, strict=True) if n)
    assert counts == [floor(w * draws) if n else 0 for w, n in zip(exact, sizes, strict=False)]
    order = epoch_order(sizes, mixes("interleave-under", sizes, weights, ()), shuffle=True, seed=2, epoch=0).tolist()
    assert len(order) == len(set(order))


@given(SIZES.filter(any), WEIGHTS)
def test_interleave_over_sees_every_sample_and_ends_with_the_last_source(sizes, weights):
    mix = mixes("interleave-over", sizes, weights, ())
    counts = [count for _, count in stretches(sizes, mix, 0)]
    exact = [Fraction(str(w)) for w in weights]
    draws = max(n / w for n, w in zip(sizes, exact, strict=False) if n)
    assert counts == [ceil(w * draws) if n else 0 for w, n in zip(exact, sizes, strict=False)]
    assert any(count == n for count, n in zip(counts, sizes, strict=True) if n)
    assert set(epoch_order(sizes, mix, shuffle=True, seed=2, epoch=0).tolist()) == set(range(sum(sizes)))


def test_epochs_of_a_source_count_for_interleaving():
    mix = Mix("interleave-under", (1.0, 1.0), (2.0, 1.0))
    assert [count for _, count in stretches([5, 30], mix, 0)] == [10, 10]


@pytest.mark.parametrize(("kind", "counts"), [("weighted", [75, 25]), ("concat", [20, 80])])
def test_epochs_of_a_given_length_are_split_by_weight_or_by_size(kind, counts):
    mix = Mix(kind, (3.0, 1.0), (), 100)
    for epoch in range(3):
        assert [count for _, count in stretches([10, 40], mix, epoch)] == counts


def test_short_virtual_epochs_show_everything_before_anything_again():
    orders = [epoch_order([10], Mix(epoch_samples=4), shuffle=True, seed=1, epoch=e).tolist() for e in range(5)]
    flat = [i for order in orders for i in order]
    assert len(set(flat[:8])) == 8
    assert Counter(flat) == dict.fromkeys(range(10), 2)


def test_without_shuffling_an_interleaving_is_even():
    order = epoch_order([6, 3], Mix("interleave-under", (2.0, 1.0)), shuffle=False, seed=1, epoch=0).tolist()
    assert order == [0, 6, 1, 2, 7, 3, 4, 8, 5]


def test_sources_without_samples_take_no_part():
    for kind in KINDS:
        assert stretches([0, 4], Mix(kind), 0) == [(0, 0), (0, 4)]
        assert stretches([0], Mix(kind), 0) == [(0, 0)]


def test_orders_are_those_of_the_seed_and_epoch():
    def order(seed, epoch):
        return epoch_order([9, 9], Mix("weighted", (1.0, 3.0)), shuffle=True, seed=seed, epoch=epoch).tolist()

    assert order(1, 2) == order(1, 2)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train": ({"path": "a", "weight": 2.0}, {"path": "b"})}, "`weight` has no effect"),
        ({"mix": "weighted", "train": ({"path": "a", "epochs": 2.0},)}, "`epochs` has no effect"),
        ({"mix": "interleave-over", "epoch_samples": 5}, "decides itself how long an epoch is"),
        ({"eval": ({"path": "a", "epochs": 2.0},)}, "read once"),
    ],
)
def test_settings_that_would_have_no_effect_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        DataSection(**values)
