"""A gradient that is not finite on one rank only reaches the weights of none; all decide alike."""

from pathlib import Path

import pytest
from erniecore_conformance.processes import on_ranks

HELPERS = Path(__file__).with_name("hybrid_helpers.py")


LAYOUTS = {
    "data": {"parallel__data": 2},
    "stage2": {"parallel__sharding": 2, "parallel__sharding_stage": 2},
    "tensor": {"parallel__tensor": 2},
}


@pytest.fixture(scope="module")
def outcomes(words, tmp_path_factory):
    """Case -> what both ranks found: one bad step on each layout, and two in a row of which only one may be skipped."""
    place = tmp_path_factory.mktemp("guards")
    options = {"train__max_steps": 8, "checkpoint__every": 1, "parallel__name": "hybrid", "parallel__timeout": 60}
    cases = {name: (words(place / name, **options, **layout), 3, 3) for name, layout in LAYOUTS.items()}
    cases["back"] = words(place / "back", **options, **LAYOUTS["data"], train__max_skips=1), 4, 5
    found = on_ranks(2, f"{HELPERS}:poisonings", list(cases.values()))
    return {name: (found[0][i], found[1][i]) for i, name in enumerate(cases)}


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bad_step_on_one_rank_is_skipped_by_all(outcomes, layout):
    zero, one = outcomes[layout]
    assert one["tries"]
    assert zero["ended"] == one["ended"] == "finished"
    assert zero["finite"]
    assert one["finite"]
    assert (zero["weights"] == one["weights"]) == (layout != "tensor")  # there each holds a part


@pytest.mark.multiproc
@pytest.mark.slow
def test_all_ranks_go_back_together_and_pass_over_the_same_steps(outcomes):
    zero, one = outcomes["back"]
    assert zero["windows"] == one["windows"] == [[4, 5]]
    assert zero["ended"] == one["ended"] == "finished"
    assert zero["weights"] == one["weights"]
    assert zero["finite"]
