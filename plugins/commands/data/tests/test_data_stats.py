"""Numbers about samples."""

import pytest
from erniecore_data.stats import fill_rate, histogram, summary


@pytest.mark.parametrize(
    ("lengths", "packing", "rate"),
    [([4, 4, 2], "greedy", 1.0), ([4, 4, 4, 2], "sequential", 0.7), ([8, 8], "greedy", 0.8), ([], "greedy", 1.0)],
)
def test_fill_rate(lengths, packing, rate):
    assert fill_rate(lengths, 10, packing) == pytest.approx(rate)


def test_fill_rate_depends_on_the_packing():
    lengths = [6, 7, 4, 3]
    assert fill_rate(lengths, 10, "greedy") == 1.0
    assert fill_rate(lengths, 10, "sequential") == pytest.approx(20 / 30)


def test_bins_double_and_none_is_left_out_between():
    assert histogram([1, 5, 6]) == [
        {"from": 1, "to": 1, "count": 1},
        {"from": 2, "to": 3, "count": 0},
        {"from": 4, "to": 7, "count": 2},
    ]
    assert histogram([]) == []


def test_summary_of_nothing_is_empty():
    assert summary([]) == {}
    assert summary([1, 3])["mean"] == 2.0
