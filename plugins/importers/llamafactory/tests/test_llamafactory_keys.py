"""The table of LLaMA-Factory's arguments: complete, true about its defaults, and true about settings of ours."""

import ast
import json
from pathlib import Path

import pytest
from erniecore_config import explain
from erniecore_llamafactory.convert import convert
from erniecore_llamafactory.datasets import DatasetInfo
from erniecore_llamafactory.draft import Surroundings
from erniecore_llamafactory.table import GROUPS, TABLE

from erniecore.config import yaml
from erniecore.config.problems import known_keys
from erniecore.kinds import RUN_KINDS

FIXTURES = Path(__file__).with_name("fixtures")
ARGUMENTS = json.loads((FIXTURES / "args.json").read_text())
EXAMPLES = sorted(FIXTURES.glob("*.yaml"))
ACCELERATOR = Surroundings(
    "accelerator",
    frozenset({"float32", "bfloat16", "float16"}),
    info=DatasetInfo("data", json.loads((FIXTURES / "dataset_info.json").read_text())),
)
#: a value that means something, where the default is no value
SAMPLES = {"flag": True, "whole": 2, "number": 0.5, "text": "x", "list": ["x"], "any": {}}
SPECIAL = {
    "dataset": "identity", "eval_dataset": "identity", "quantization_bit": 4, "lr_scheduler_kwargs": {"min_lr": 1e-6},
    "loraplus_lr_ratio": 16.0, "interleave_probs": "0.5,0.5", "export_dir": "out", "deepspeed": "ds_z3_config.json",
    "evaluation_strategy": "steps",
}  # fmt: skip


def sample(name):
    """A meaningful value of an argument: its default, or one of its type."""
    default = TABLE.keys[name].default
    return SPECIAL.get(name, SAMPLES[TABLE.keys[name].type] if default in (None, "", []) else default)


def outcomes(made, name):
    """Which of the four an argument has."""
    return [
        where
        for where, found in (
            ("mapped", made.mapped),
            ("dropped", made.dropped),
            ("unknown", made.unknown),
            ("problem", made.problems),
        )
        if name in found
    ]


def test_every_argument_is_in_the_table():
    assert len(ARGUMENTS) == 249
    assert set(ARGUMENTS) <= set(TABLE.keys)
    assert len(TABLE.keys) == sum(len(keys) for keys in GROUPS.values())


def test_every_argument_has_exactly_one_outcome():
    for name in ARGUMENTS:
        made = convert({name: sample(name)}, ACCELERATOR)
        assert outcomes(made, name) in (["mapped"], ["dropped"]), (name, made.problems)


def test_every_argument_of_hugging_face_has_exactly_one_outcome():
    for name in set(TABLE.keys) - set(ARGUMENTS):
        made = convert({name: sample(name)}, ACCELERATOR)
        assert outcomes(made, name) in (["mapped"], ["dropped"]), (name, made.problems)


def test_all_arguments_together_have_exactly_one_outcome_each():
    made = convert({name: sample(name) for name in TABLE.keys}, ACCELERATOR)
    assert {len(outcomes(made, name)) for name in TABLE.keys} == {1}
    assert set(made.problems) <= {"use_dora", "interleave_probs", "adapter_name_or_path", "model_name_or_path"}


def test_defaults_are_those_of_llamafactory():
    for name, argument in ARGUMENTS.items():
        default, ours = argument["default"], TABLE.keys[name].default
        if isinstance(default, str) and "*" in default:
            default = eval(compile(ast.parse(default, mode="eval"), name, "eval"))  # a product such as 768 * 768
        if isinstance(default, str) and "." in default and default.split(".")[0].isidentifier():
            continue  # a member of an enumeration
        assert ours == ([default] if isinstance(ours, list) else default), name


def settings_of_ours():
    known = {e.key for owner, section, cls in explain.owners() for e in explain.section_keys(owner, section, cls)}
    return known | {f"{kind}.name" for kind in RUN_KINDS} | {"formats"}


@pytest.mark.parametrize("new", sorted({n for key in TABLE.keys.values() for n in key.new.split(", ") if n}))
def test_what_an_argument_becomes_is_a_setting(new):
    assert new in settings_of_ours()
    assert known_keys({})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_imported(path):
    given = yaml.parse(path.read_text(), path.name).data
    made = convert(given, ACCELERATOR)
    assert (made.unknown, made.problems) == ((), {})
    assert set(made.mapped) | set(made.dropped) == set(given)
    assert not set(made.mapped) & set(made.dropped)
    assert TABLE.match(given) == len(given)


def test_there_are_as_many_examples_as_were_copied():
    assert len(EXAMPLES) == 12


@pytest.mark.parametrize(("typo", "meant"), [("lora_rnak", "lora_rank"), ("cutof_len", "cutoff_len"), ("qqqq", "")])
def test_unknown_arguments_have_a_suggestion(typo, meant):
    made = convert({"stage": "sft", typo: 1}, ACCELERATOR)
    assert made.unknown == (typo,)
    assert made.suggestions == ({typo: meant} if meant else {})
