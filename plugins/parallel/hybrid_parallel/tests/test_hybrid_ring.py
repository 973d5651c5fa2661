"""Ring attention alone: it is attention to whole rows, with documents, padding, grouped heads, and turns that see nothing; and
its memory does not grow with the row."""

from pathlib import Path

import pytest
from erniecore_conformance.processes import on_ranks

HELPERS = Path(__file__).with_name("ring_helpers.py")
#: B, S, query heads, key heads, d, documents
CASES = [
    (1, 8, 1, 1, 4, False),
    (2, 64, 4, 2, 8, False),
    (2, 64, 4, 2, 8, True),
    (3, 128, 6, 1, 16, True),
    (1, 1024, 2, 2, 8, True),
]


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_a_ring_attends_to_whole_rows(count):
    """In float64 nothing is left but rounding; in float32 as little as with gathered keys."""
    for rank in on_ranks(count, f"{HELPERS}:attended", CASES):
        for case, (exact, ring, gathered) in zip(CASES, rank, strict=True):
            assert exact <= 1e-12, case
            assert ring <= max(3 * gathered, 1e-6), case


@pytest.fixture(scope="module")
def memory():
    """Number of ranks -> for each number of positions per rank: (kept, peak) of the ring, (kept, peak) of gathered keys."""
    lengths = [256, 1024]
    return {
        count: dict(zip(lengths, on_ranks(count, f"{HELPERS}:memory", lengths)[0], strict=True)) for count in (2, 4)
    }


@pytest.mark.multiproc
@pytest.mark.slow
def test_memory_is_that_of_the_positions_here(memory):
    """In units of a rank's keys and values: the same for a row of twice the length on twice the ranks."""
    print(memory)
    for length in (256, 1024):
        (ring_2, gathered_2), (ring_4, gathered_4) = memory[2][length], memory[4][length]
        assert max(ring_2[0], ring_4[0]) < 0.05  # its own are its inputs
        assert ring_4[1] <= 1.1 * ring_2[1]  # one more is on its way
        assert gathered_4[0] > gathered_2[0] > 4
        assert gathered_4[1] > 1.5 * gathered_2[1]
