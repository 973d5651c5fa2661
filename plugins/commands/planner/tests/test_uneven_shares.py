"""Shares of a step on unequal accelerators: the best of all, and the step time that is planned for them."""

import itertools

import pytest
from erniecore_planner.clusters import Cluster, Machines
from erniecore_planner.shares import fastest_shares


def best(micro_batches, speeds):
    """By trying all."""
    rest = [range(1, micro_batches + 1)] * (len(speeds) - 1)
    return min(
        max(share / speed for share, speed in zip((*some, micro_batches - sum(some)), speeds, strict=True))
        for some in itertools.product(*rest)
        if sum(some) < micro_batches
    )


@pytest.mark.parametrize("speeds", [(4.0, 1.0), (1.0, 1.0, 1.0), (3.0, 2.0, 1.0), (5.0, 1.0, 1.0, 0.3)])
@pytest.mark.parametrize("micro_batches", [4, 5, 8, 11])
def test_no_shares_end_earlier(speeds, micro_batches):
    found = fastest_shares(micro_batches, speeds)
    assert sum(found) == micro_batches
    assert min(found) >= 1
    assert max(s / v for s, v in zip(found, speeds, strict=True)) == pytest.approx(best(micro_batches, speeds))


def test_fewer_micro_batches_than_ranks_are_refused():
    with pytest.raises(ValueError, match="2 micro-batches for 3 ranks"):
        fastest_shares(2, (1.0, 1.0, 1.0))


def test_clusters_know_whether_all_are_equally_fast():
    fast, slow = (Machines(1, 1, "x", 1, flops) for flops in (4.0, 1.0))
    assert Cluster((fast, fast)).equally_fast
    assert not Cluster((fast, slow)).equally_fast
