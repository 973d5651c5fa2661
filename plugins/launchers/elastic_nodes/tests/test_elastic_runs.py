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


CLUSTER = """
machines:
  - {count: 1, accelerators: 1, accelerator: fast, memory: 8, measured_tflops: 0.4}
  - {count: 1, accelerators: 1, accelerator: slow, memory: 8, measured_tflops: 0.1}
network: 1
"""


def test_the_layout_of_the_plan_is_run_on_whoever_is_there(tmp_path):
    words, cluster = storm.make_home(tmp_path), tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    planned = ["launcher.layout=planned", f"launcher.cluster={cluster}"]
    run = storm.Storm([*words, *planned], tmp_path / "storm", STEPS, nodes=2, least=1)
    try:
        assert run.until(run.settled)
        run.kill_machine(run.others[0])
        codes = run.finish()
    finally:
        run.close()
    events = run.events()
    assert codes == [0], [path.read_text()[-2000:] for path in tmp_path.glob("storm-*.log")]
    layouts = [set(event["settings"]) for event in events if event["event"] == "elastic"]
    # four micro-batches, four times as fast: three of them for the first machine, where `same` would give each two
    assert {"parallel.data=2", "parallel.micro_batches=[3,1]", "train.accumulation=3"} <= layouts[0]
    assert layouts[-1] == {"train.accumulation=4"}
    made = storm.curve(events)
    assert sorted(made) == list(range(1, STEPS + 1))
    assert made == storm.by_hand(words, tmp_path / "hand", events, STEPS)


def test_a_run_without_a_checkpoint_begins_again_with_whoever_is_left(tmp_path):
    words = storm.make_home(tmp_path)
    run = storm.Storm(words, tmp_path / "storm", 6, nodes=2, least=1)
    try:
        assert run.until(lambda: any(event["event"] == "run_start" for event in run.events()))
        run.kill_machine(run.others[0])  # in the first step: nothing was saved or copied
        codes = run.finish()
    finally:
        run.close()
    events = run.events()
    assert codes == [0], [path.read_text()[-2000:] for path in tmp_path.glob("storm-*.log")]
    made = storm.curve(events)
    assert sorted(made) == [1, 2, 3, 4, 5, 6]
    assert made == storm.by_hand(words, tmp_path / "hand", events, 6)
