"""Settings files in YAML, and those of other toolkits, that are damaged, enormous or of other types: a usage error, exit 2."""

import json

import pytest
from hostile_files import DEEP, JSON_TEXTS, SPECIAL, WRONG, YAML, assert_refused, shown, special

from erniecore.errors import Exit

REFUSED = {Exit.USAGE, Exit.CHECKPOINT, Exit.DATA, Exit.ENVIRONMENT}

ERNIEKIT = {"stage": "SFT", "model_name_or_path": "none", "train_dataset_path": "a.jsonl", "train_dataset_type": "erniekit",
            "max_seq_len": 128, "learning_rate": 1e-5, "lora_rank": 8, "fine_tuning": "LoRA", "max_steps": 5}  # fmt: skip
LLAMA = {"stage": "sft", "model_name_or_path": "none", "dataset": "demo", "dataset_dir": ".", "template": "ernie",
         "cutoff_len": 128, "learning_rate": 1e-5, "lora_rank": 8, "finetuning_type": "lora", "do_train": True}  # fmt: skip
FILES = {"erniekit": ERNIEKIT, "llamafactory": LLAMA}

COMMANDS = [["run", "--dry-run"], ["config", "show"], ["config", "check"], ["config", "import"]]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("text", YAML)
@pytest.mark.area("settings, overrides, environment")
def test_a_settings_file_that_is_none(ernie, box, words, text):
    (box / "run.yaml").write_bytes(YAML[text])
    valid = {"merge keys", "tabs"}  # show and check may read it
    assert_refused(
        ernie(*words, box / "run.yaml"), {0, *REFUSED} if text in valid or "show" in words else REFUSED | {0}
    )
    assert not (box / "hacked").exists()


@pytest.mark.parametrize("text", JSON_TEXTS)
@pytest.mark.parametrize("name", ["run.json", "dataset_info.json"])
@pytest.mark.area("files of other toolkits")
def test_a_json_file_of_another_toolkit_that_is_none(ernie, box, name, text):
    (box / name).write_bytes(JSON_TEXTS[text])
    if name == "dataset_info.json":
        (box / "run.json").write_text(json.dumps(LLAMA))
    assert_refused(ernie("config", "import", box / "run.json"), REFUSED | {0})


@pytest.mark.parametrize("value", [*WRONG, None, 10**399], ids=shown)
@pytest.mark.parametrize("toolkit", FILES)
@pytest.mark.area("files of other toolkits")
def test_values_of_another_type_in_files_of_other_toolkits(ernie, box, toolkit, value):
    for key in FILES[toolkit]:
        (box / "old.json").write_text(json.dumps({**FILES[toolkit], key: value}))
        words = ["config", "import", box / "old.json", "--from", toolkit]
        assert_refused(ernie(*words), REFUSED | {0})


@pytest.mark.parametrize("key", ["\x1b[31m", "x" * 100_000, "a.b.c", "", "__class__", "\u202e"], ids=shown)
@pytest.mark.parametrize("toolkit", FILES)
@pytest.mark.area("files of other toolkits")
def test_unknown_keys_of_files_of_other_toolkits(ernie, box, toolkit, key):
    (box / "old.json").write_text(json.dumps({**FILES[toolkit], key: 1}))
    assert_refused(ernie("config", "import", box / "old.json"), {Exit.USAGE})


@pytest.mark.parametrize("value", [*WRONG, None, {"demo": {"file_name": "../../etc/passwd"}}, {"demo": {"columns": 5}},
                                   {"demo": {"tags": ["x"]}}, {"demo": {"file_name": "x" * 5000}}], ids=shown)  # fmt: skip
@pytest.mark.area("files of other toolkits")
def test_a_list_of_data_sets_of_another_type(ernie, box, value):
    (box / "dataset_info.json").write_text(json.dumps(value))
    (box / "old.json").write_text(json.dumps(LLAMA))
    assert_refused(ernie("config", "import", box / "old.json"), REFUSED | {0})


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.area("files of other toolkits")
def test_a_list_of_data_sets_that_is_no_file(ernie, box, kind):
    special(box / "dataset_info.json", kind)
    (box / "old.json").write_text(json.dumps(LLAMA))
    assert_refused(ernie("config", "import", box / "old.json"), REFUSED | {0})


VARIABLES = {
    "a key that is none": {"ERNIE_RUN__SEEED": "1"},
    "a section that is none": {"ERNIE_RUM__SEED": "1"},
    "digits": {"ERNIE_RUN__SEED": "9" * 5000},
    "deep": {"ERNIE_RUN__SEED": "[" * DEEP},
    "infinity": {"ERNIE_TRAIN__LEARNING_RATE": ".inf"},
    "NaN": {"ERNIE_TRAIN__WEIGHT_DECAY": ".nan"},
    "escapes": {"ERNIE_RUN__SEED": "\x1b[31m"},
    "a tag": {"ERNIE_RUN__SEED": "!!python/object/apply:os.getpid []"},
    "a list": {"ERNIE_TRAIN__MAX_STEPS": "[1]"},
    "negative": {"ERNIE_TRAIN__MAX_STEPS": "-1"},
    "a section as text": {"ERNIE_TRAIN": "x"},
    "empty words": {"ERNIE___": "1"},
    "not UTF-8": {"ERNIE_RUN__SEED": "\udcff"},
}


@pytest.mark.parametrize("words", COMMANDS[:3], ids=" ".join)
@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.area("settings, overrides, environment")
def test_variables_that_no_setting_can_have(ernie, box, words, name):
    (box / "run.yaml").write_text("method: sft\n")
    assert_refused(ernie(*words, box / "run.yaml", environ=VARIABLES[name]), REFUSED | {0})
