"""Collectives on gloo against numpy, in one launch per number of processes."""

from pathlib import Path

import pytest
from erniecore_conformance.processes import on_ranks
from erniecore_hybrid_parallel.comm import partners

pytestmark = pytest.mark.slow

HELPERS = Path(__file__).with_name("hybrid_helpers.py")


@pytest.fixture(scope="module", params=[2, 4])
def found(request):
    """What each of so many ranks found wrong."""
    return on_ranks(request.param, f"{HELPERS}:collectives")


@pytest.mark.multiproc
def test_collectives_are_numpys(found):
    assert [rank["collectives"] for rank in found] == [[]] * len(found)


@pytest.mark.multiproc
def test_ways_between_ranks_are_adjoint(found):
    assert [rank["adjoints"] for rank in found] == [[]] * len(found)


@pytest.mark.parametrize("size", [2, 4, 6, 8, 14])
def test_every_round_pairs_all_ranks_and_each_pair_meets_once(size):
    table = [partners(index, size) for index in range(size)]
    for index, row in enumerate(table):
        assert sorted([*row, index]) == list(range(size))
        assert [table[other][turn] for turn, other in enumerate(row)] == [index] * (size - 1)


@pytest.mark.multiproc
@pytest.mark.slow
def test_who_is_late_gone_or_doing_something_else_is_named():
    zero, one = on_ranks(2, f"{HELPERS}:barriers")
    assert zero == [
        0,
        400,  # a ring of two sends as much as the tensor has
        "rank 1 does broadcast where this one does all_reduce",
        "waited 1 s for rank 1",
        "rank 1 has ended",
        "rank 1 has ended",  # in a backward pass
    ]
    assert one[2:] == [
        "rank 0 does all_reduce where this one does broadcast",
        "this process lost contact with another one of the run",  # while a group is created
        "this process lost contact with rank 0",
    ]
