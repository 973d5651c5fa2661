"""Which samples share a row."""

import numpy as np
import pytest
from erniecore_sampler.packing import pack
from hypothesis import given
from hypothesis import strategies as st


def sequential(lengths, capacity):
    return pack(np.asarray(lengths, np.int64), capacity, "sequential")[:]


def greedy(lengths, capacity, buffer=500):
    return pack(np.asarray(lengths, np.int64), capacity, "greedy", buffer)[:]


LENGTHS = st.lists(st.integers(1, 10), max_size=60)
PACKERS = [
    sequential,
    greedy,
    lambda lengths, room: greedy(lengths, room, 1),
    lambda lengths, room: greedy(lengths, room, 7),
]


@pytest.mark.parametrize("packer", PACKERS)
@given(LENGTHS)
def test_every_sample_is_in_exactly_one_row_that_holds_it(packer, lengths):
    packs = packer(lengths, 10)
    assert sorted(i for p in packs for i in p) == list(range(len(lengths)))
    assert all(0 < sum(lengths[i] for i in p) <= 10 for p in packs)


@given(LENGTHS)
def test_sequential_keeps_the_order(lengths):
    assert [i for p in sequential(lengths, 10) for i in p] == list(range(len(lengths)))


@given(LENGTHS)
def test_samples_keep_their_order_within_a_row(lengths):
    assert all(p == sorted(p) for p in greedy(lengths, 10, 20))


@given(LENGTHS)
def test_greedy_is_not_worse_than_twice_the_least_possible(lengths):
    packs = greedy(lengths, 10, 1000)
    assert len(packs) <= max(1, 2 * -(-sum(lengths) // 10))


def test_sequential_table():
    assert sequential([4, 4, 4, 10, 1, 1], 10) == [[0, 1], [2], [3], [4, 5]]


def test_greedy_takes_the_fullest_row_that_fits():
    assert greedy([6, 7, 3, 4], 10) == [[0, 3], [1, 2]]


def test_the_emptiest_row_of_a_buffer_meets_the_next_one():
    assert greedy([9, 3, 7, 9], 10, 2) == [[0], [1, 2], [3]]


def test_too_long_a_sample_is_an_error():
    for packer in (sequential, greedy):
        with pytest.raises(ValueError, match="sample 1 has 11"):
            packer([1, 11], 10)


def test_greedy_keeps_rows_mixed():
    """Rows of one kind only make consecutive training steps see different data."""
    random = np.random.default_rng(0)
    lengths = random.choice([10, 25, 40], size=500).tolist()
    *rows, rest = greedy(lengths, 1000)
    assert len(rest) < 10
    assert sum(lengths[i] for row in rows for i in row) > 0.98 * 1000 * len(rows)
    assert all(len({lengths[i] for i in row}) == 3 for row in rows)


SIZES = st.lists(st.tuples(st.integers(1, 10), st.integers(0, 6)), max_size=60)


@pytest.mark.parametrize("kind", ["sequential", "greedy"])
@given(SIZES, st.integers(6, 12), st.integers(1, 20))
def test_rows_hold_neither_too_many_tokens_nor_too_many_patches(kind, sizes, most, buffer):
    lengths, patches = (np.array([s[k] for s in sizes], np.int64) for k in (0, 1))
    packs = pack(lengths, 10, kind, buffer, patches=patches, max_patches=most)[:]
    assert sorted(i for p in packs for i in p) == list(range(len(sizes)))
    assert all(lengths[p].sum() <= 10 and patches[p].sum() <= most for p in packs)
    unbounded = pack(lengths, 10, kind, buffer)[:]
    assert pack(lengths, 10, kind, buffer, patches=patches, max_patches=0)[:] == unbounded
    assert pack(lengths, 10, kind, buffer, patches=patches, max_patches=999)[:] == unbounded


def test_a_sample_with_too_many_patches_is_named():
    with pytest.raises(ValueError, match="sample 1 has 9 patches, a row holds 8"):
        pack(np.array([1, 1]), 10, "greedy", patches=np.array([8, 9]), max_patches=8)
