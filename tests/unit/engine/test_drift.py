"""Which settings may change when a run continues."""

import json
from pathlib import Path

import pytest
from erniecore_catalog.retired import renamed_settings

from erniecore.config.compose import load
from erniecore.engine.config_hash import config_hash, flatten
from erniecore.engine.drift import compare

BASE = {
    "run": {"seed": 1, "out": "a"},
    "train": {"learning_rate": 1e-3, "max_steps": 10, "recompute": "none"},
    "data": {"train": [{"path": "a.jsonl", "weight": 1.0}], "eval": [], "workers": 0},
    "adapter": None,
}


def changed(**values):
    copy = {section: dict(keys) if isinstance(keys, dict) else keys for section, keys in BASE.items()}
    for name, value in values.items():
        section, key = name.split("__")
        copy[section][key] = value
    return copy


@pytest.mark.parametrize(
    "change",
    [
        {"run__out": "b"},
        {"data__workers": 4},
        {"data__eval": [{"path": "e.jsonl", "weight": 1.0}]},
        {"train__recompute": "full"},
    ],
)
def test_safe_changes_are_reported_but_allowed_and_keep_the_hash(change):
    differences = compare(BASE, changed(**change))
    assert differences
    assert not any(d.refused for d in differences)
    assert config_hash(BASE) == config_hash(changed(**change))


@pytest.mark.parametrize(
    "change",
    [{"run__seed": 2}, {"train__learning_rate": 1e-4}, {"data__train": [{"path": "a.jsonl", "weight": 2.0}]}],
)
def test_changes_of_the_mathematics_are_refused_and_change_the_hash(change):
    assert [d.refused for d in compare(BASE, changed(**change))] == [True]
    assert config_hash(BASE) != config_hash(changed(**change))


def test_more_steps_are_allowed_with_a_note():
    (difference,) = compare(BASE, changed(train__max_steps=20))
    assert not difference.refused
    assert "schedule" in str(difference)
    assert "10 -> 20" in str(difference)


def test_moved_data_file_is_left_to_the_check_of_its_content():
    (difference,) = compare(BASE, changed(data__train=[{"path": "b.jsonl", "weight": 1.0}]))
    assert difference.key == "data.train.0.path"
    assert not difference.refused


def test_added_source_is_refused():
    more = changed(data__train=[{"path": "a.jsonl", "weight": 1.0}, {"path": "b.jsonl", "weight": 1.0}])
    assert any(d.refused for d in compare(BASE, more))


def test_added_section_is_refused():
    assert all(d.refused for d in compare(BASE, {**BASE, "adapter": {"rank": 8}}))


def test_equal_settings_have_no_differences():
    assert compare(BASE, changed()) == []


def test_flat_names():
    assert flatten({"a": {"b": [1, {"c": 2}], "d": {}, "e": []}}) == {"a.b.0": 1, "a.b.1.c": 2, "a.d": {}, "a.e": []}


def test_rows_may_be_split_differently_as_long_as_a_step_has_as_many():
    before = {"train": {"batch_size": 2, "accumulation": 2}, "parallel": {"data": 1}}
    now = {"train": {"batch_size": 2, "accumulation": 1}, "parallel": {"data": 2}}
    assert not any(d.refused for d in compare(before, now, same_rows=True))
    assert [d.key for d in compare(before, now, same_rows=False) if d.refused] == ["train.accumulation"]


def test_settings_that_were_added_since_are_no_change(monkeypatch):
    """A checkpoint of version 0.1.0: who adds a setting that decides a weight says in ``ADDED`` what old runs did."""
    run = Path(__file__).parents[2] / "fixtures" / "run_v0.1"
    monkeypatch.chdir(run)
    before = json.loads(Path("out/ckpt/step-00000004/state.json").read_text())["settings"]
    now = load(Path("run.yaml"), [], {}, {}).settings.model_dump(mode="json")
    assert [str(found) for found in compare(renamed_settings(before), now) if found.refused] == []
