"""The table of ERNIEKit's keys: complete, and true about settings of ours."""

import json
from pathlib import Path

import pytest
from erniecore_config import explain
from erniecore_erniekit.convert import convert
from erniecore_erniekit.table import GROUPS, KEYS, TABLE
from erniecore_key_tables import values

from erniecore.config import yaml
from erniecore.kinds import RUN_KINDS

FIXTURES = Path(__file__).parents[4] / "tests/fixtures/erniekit"
ARGUMENTS = json.loads((FIXTURES / "args.json").read_text())
CONFIGS = sorted((FIXTURES / "configs").rglob("*.yaml"))
#: a value that means something, where the documentation's default is no value
SAMPLES = {
    "flag": True, "whole": 2, "number": 0.5, "text": "x", "list": ["a.jsonl"], "words": "stage1", "any": "x",
}  # fmt: skip
SPECIAL = {
    "evaluation_strategy": "steps",
    "save_strategy": "steps",
    "lr_scheduler_type": "cosine",
    "weight_quantize_algo": "weight_only_mix",
    "eval_dataset_type": "erniekit",
    "train_dataset_type": "erniekit",
    "train_dataset_prob": "1.0",
    "eval_dataset_prob": "1.0",
    "loss_type": "ipo",
    "recompute_granularity": "full_attn",
}


def sample(key):
    """A meaningful value of a documented key."""
    return SPECIAL.get(key, SAMPLES[KEYS[key].type])


def read(path):
    return yaml.parse(path.read_text(), path.name).data


def test_there_are_as_many_as_documented():
    assert len(ARGUMENTS) == len({a["key"] for a in ARGUMENTS}) == 106
    assert len(CONFIGS) == 17


def test_every_documented_key_alone_is_mapped_or_dropped():
    for key in (a["key"] for a in ARGUMENTS):
        outcome = convert({"model_name_or_path": "baidu/ERNIE-4.5-21B-A3B-Paddle", "do_eval": True, key: sample(key)})
        assert not outcome.unknown, key
        assert not outcome.problems, key
        assert (key in outcome.mapped) != (key in outcome.dropped), key
        assert outcome.mapped.get(key) or len(outcome.dropped[key]) > 10, key


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: str(p.relative_to(FIXTURES / "configs")))
def test_every_key_of_a_published_file_is_mapped_or_dropped(path):
    given = read(path)
    outcome = convert(given)
    assert outcome.unknown == ()
    assert outcome.problems == {}
    assert sorted([*outcome.mapped, *outcome.dropped]) == sorted(given)


def test_keys_are_listed_once():
    assert sum(len(keys) for keys in GROUPS.values()) == len(KEYS)


def test_a_key_is_a_setting_or_has_a_reason():
    for key in KEYS.values():
        assert key.new or key.note, key.old
        if key.default is not None and key.type not in ("list", "any"):
            assert values.TYPES[key.type](key.default) == key.default, key.old


#: settings of plugins that are not part of this repository yet, by their section
ANNOUNCED = ("parallel", "quantizer")


@pytest.fixture(scope="module")
def settings():
    known = {e.key for owner, section, cls in explain.owners() for e in explain.section_keys(owner, section, cls)}
    return known | {f"{kind}.name" for kind in RUN_KINDS} | {"callbacks.visualdl"}


def test_every_setting_that_is_named_exists(settings):
    named = {new for key in KEYS.values() for new in key.new.split(", ") if new}
    assert not [key for key in sorted(named) if key not in settings and not key.startswith(ANNOUNCED)]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: str(p.relative_to(FIXTURES / "configs")))
def test_every_setting_that_a_published_file_becomes_is_in_the_table(path):
    outcome = convert(read(path))
    for old, new in outcome.mapped.items():
        for setting in new.split(", "):
            assert setting in outcome.settings
            named = KEYS[old].new.split(", ")
            assert any(setting in (name, name.partition(".")[0]) for name in named), old


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("learning_rte", "learning_rate"), ("lora_rnak", "lora_rank"), ("max_step", "max_steps"), ("qqqq", "")],
)
def test_unknown_keys_have_a_suggestion(typo, meant):
    assert TABLE.suggestion(typo) == meant
    outcome = convert({"stage": "SFT", typo: 1})
    assert outcome.unknown == (typo,)
    assert outcome.suggestions == ({typo: meant} if meant else {})


@pytest.mark.parametrize("key", ["eval_iters", "eval_batch_size"])
def test_a_key_of_published_files_that_erniekit_ignores_is_dropped_with_a_note(key):
    outcome = convert({"stage": "SFT", key: 10})
    assert (outcome.unknown, outcome.problems) == ((), {})
    assert outcome.dropped[key].startswith("ERNIEKit has no such key and ignores it")
    assert [(note.kind, note.keys) for note in outcome.notes if key in note.keys] == [("hint", (key,))]


def test_keys_of_a_group_belong_to_it():
    assert TABLE.split({"vision_config.depth": 16, "learning_rate.x": 1}) == (
        {"vision_config": 16},
        ["learning_rate.x"],
    )
