"""A run whose machines die and join is the run that a user would have made by hand."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = [pytest.mark.multiproc, pytest.mark.slow]
_spec = importlib.util.spec_from_file_location("elastic_storm", Path(__file__).with_name("elastic_storm.py"))
storm = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(storm)
STEPS = 60


def test_deaths_and_joins_leave_the_run_that_changes_its_layout_by_hand(tmp_path):
    words = storm.make_home(tmp_path)
    events, kinds, codes = storm.weather(words, tmp_path, 3, STEPS, seed=2)
    assert {*codes} == {0}, [path.read_text()[-2000:] for path in tmp_path.glob("storm-*.log")]
    made = storm.curve(events)
    assert sorted(made) == list(range(1, STEPS + 1))
    assert made == storm.by_hand(words, tmp_path / "hand", events, STEPS)
    # every loss is of a rank or machine; with the copies in memory it costs at most the step that was under way
    assert storm.lost_steps(events) <= sum(not kind.startswith("join") for kind in kinds)
