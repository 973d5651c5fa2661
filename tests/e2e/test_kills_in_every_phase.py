"""A few of the cases of ``make test-kills``: SIGKILL in a phase, and the same command ends as if there had been none."""

import random

import pytest
from kill_cases import LAYOUTS, PHASES, Kill, Storm
from kill_storm import cells, chained, planned
from small_model import write_rows

pytestmark = [pytest.mark.slow, pytest.mark.multiproc]


@pytest.fixture(scope="module")
def storm(home, tmp_path_factory, warm):
    place = tmp_path_factory.mktemp("kills").resolve()
    for name in LAYOUTS:
        model = LAYOUTS[name][0]
        if not (place / model).exists():
            (place / model).symlink_to(home / model)
    write_rows(place / "train.jsonl", 600, 1)
    write_rows(place / "eval.jsonl", 12, 2)
    return Storm(place, warm, 7)


CHAINS = [
    ("one process", [Kill("tokenizing", "workers"), Kill("background save", "all"), Kill("export", "all")]),
    (
        "data=2",
        [Kill("load", "launcher"), Kill("checkpoint", "rank"), Kill("steps", "stopped"), Kill("relaunch", "launcher")],
    ),
]


@pytest.mark.parametrize(("layout", "kills"), CHAINS, ids=[layout for layout, _ in CHAINS])
def test_kills_change_nothing_and_leave_nothing(storm, layout, kills):
    storm.undisturbed(layout)
    before = sum(storm.kills.values())
    left = storm.chain(before, layout, kills, "test")
    assert not storm.failures
    assert sum(storm.kills.values()) - before >= len(kills) - len(left) > 0


def test_a_run_that_ends_otherwise_is_a_failure(storm):
    straight = storm.undisturbed("one process")
    other = Storm(storm.home, storm.warm, 8, straight={"one process": (*straight[:2], b"")})
    other.chain(100, "one process", [Kill("steps", "all")], "test")
    assert [failure["what"] for failure in other.failures] == ["other losses or tensors than without kills"]


def test_the_plan_has_every_phase_target_and_layout_and_is_the_same_for_a_seed():
    chains = planned(500, random.Random(1))
    assert chains == planned(500, random.Random(1))
    kills = {(layout, kill) for layout, some in chains for kill in some}
    assert sum(len(some) for _, some in chains) == 500
    assert kills == {(layout, kill) for layout in LAYOUTS for kill in cells(layout)}
    assert {kill.phase for _, kill in kills} == set(PHASES)
    late = chained([("data=2", Kill("export", "all")), ("data=2", Kill("tokenizing", "workers"))], random.Random(0), 2)
    assert [kill.phase for kill in late[0][1]] == ["tokenizing", "export"]
