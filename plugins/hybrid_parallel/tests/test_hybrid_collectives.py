"""Collectives on gloo against numpy, in one launch per number of processes."""

from pathlib import Path

import pytest

from erniecore.testing.processes import on_ranks

HELPERS = Path(__file__).with_name("hybrid_helpers.py")


@pytest.mark.multiproc
@pytest.mark.parametrize("count", [2, 4])
def test_collectives_are_numpys(count):
    assert on_ranks(count, f"{HELPERS}:collectives") == [[]] * count
