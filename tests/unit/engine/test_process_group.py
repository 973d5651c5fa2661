"""Parts of tensors, and values of all ranks put together."""

import numpy as np
import pytest

from erniecore.engine.process_group import SingleProcess, any_rank, combine, sum_named
from erniecore.types.process_group import ShardSpec


class Others(SingleProcess):
    """Rank 0 of several: what the others say is given."""

    def __init__(self, *others, counts=True):
        self.size, self.counts, self._others = 1 + len(others), counts, others

    def all_gather_object(self, value):
        return [value, *self._others]


@pytest.mark.parametrize("axis", [0, 1])
def test_cuts_join_to_the_whole(axis):
    whole = np.arange(24).reshape(4, 6)
    parts = [ShardSpec((4, 6), axis, index, 2).take(whole) for index in range(2)]
    assert np.array_equal(np.concatenate(parts, axis), whole)


def test_flat_ranges_of_a_cut_join_to_it():
    whole = np.arange(24).reshape(4, 6)
    cut = ShardSpec((4, 6), 1, 1, 2)
    ranges = [ShardSpec((4, 6), 1, 1, 2, flat).take(whole) for flat in ((0, 5), (5, 10), (10, 12))]
    assert np.array_equal(np.concatenate(ranges), cut.take(whole).reshape(-1))


def test_only_an_uncut_piece_is_whole():
    assert ShardSpec((2,)).is_full
    assert not ShardSpec((2,), 0, 0, 2).is_full
    assert not ShardSpec((2,), flat=(0, 1)).is_full


def test_sums_by_name_over_ranks():
    assert sum_named(Others({"tokens": 2.0}, {"tokens": 3.0, "pairs": 1.0}), {"tokens": 1.0}) == {
        "tokens": 6.0,
        "pairs": 1.0,
    }


def test_a_rank_that_does_not_count_adds_nothing():
    assert sum_named(Others({"tokens": 2.0}, counts=False), {"tokens": 7.0}) == {"tokens": 2.0}
    sums, squares, tokens = combine(Others([{"loss": (4.0, 2.0)}, 1.0, 5], counts=False), {"loss": (9.0, 9.0)}, 3.0, 5)
    assert (sums, squares, tokens) == ({"loss": (4.0, 2.0)}, 4.0, 5)


def test_metrics_that_some_ranks_lack_count_where_they_are():
    sums, _, _ = combine(Others([{"loss": (1.0, 1.0), "kl": (2.0, 4.0)}, 0.0, 1]), {"loss": (3.0, 1.0)}, 0.0, 1)
    assert sums == {"loss": (4.0, 2.0), "kl": (2.0, 4.0)}


def test_any_rank_stops_all():
    assert any_rank(Others("SIGTERM"), "") == "SIGTERM"
    assert any_rank(Others("", ""), "") == ""
