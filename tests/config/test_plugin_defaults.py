"""What a run has where nobody wrote anything: the method's defaults, multiplied by the adapter; written values stay."""

import pytest

from erniecore.config.compose import load
from erniecore.errors import ConfigError


def settings(*overrides, method="dpo", adapter=None, environ=None):
    size = [] if any(word.startswith("model.size") for word in overrides) else ["model.size=0.3b"]
    flags = {"method": method, "model": "ernie45", "adapter": adapter}
    return load(None, [*size, *overrides], flags, environ or {}, require=())


def found(loaded, key):
    section, name = key.split(".")
    return getattr(getattr(loaded.settings, section), name), loaded.provenance[key]


@pytest.mark.parametrize(
    ("method", "adapter", "rate"),
    [
        ("sft", None, 2e-5),
        ("sft", "lora", 2e-4),
        ("sft", "lora-plus", 5e-5),
        ("dpo", None, 5e-7),
        ("dpo", "lora", 5e-6),
        ("kto", "dora", 5e-6),
        ("orpo", None, 8e-6),
        ("reward", "lora", 1e-4),
        ("pt", None, 1e-5),
    ],
)
def test_the_learning_rate_is_that_of_the_method_and_the_adapter(method, adapter, rate):
    value, source = found(settings(method=method, adapter=adapter), "train.learning_rate")
    assert value == rate
    if adapter is None:
        assert source == f"default of method {method}"
    else:
        assert source.startswith(f"default of method {method}, ")
        assert source.endswith(f" times by adapter {adapter}")


def test_warm_up_and_batch_are_the_methods():
    loaded = settings()
    assert found(loaded, "train.warmup_ratio") == (0.1, "default of method dpo")
    assert found(loaded, "train.accumulation") == (8, "default of method dpo")
    assert found(loaded, "method.beta") == (0.1, "default")
    assert found(loaded, "train.weight_decay") == (0.01, "default")


@pytest.mark.parametrize(
    ("written", "environ", "source"),
    [
        (["train.learning_rate=3e-3"], {}, "command line"),
        ([], {"ERNIE_TRAIN__LEARNING_RATE": "3e-3"}, "environment ERNIE_TRAIN__LEARNING_RATE"),
    ],
)
def test_what_is_written_stays_with_an_adapter_too(written, environ, source):
    assert found(settings(*written, adapter="lora", environ=environ), "train.learning_rate") == (3e-3, source)


def test_a_recipe_is_above_the_methods_defaults():
    assert found(settings("model.size=tiny"), "train.learning_rate")[0] == 1e-3


@pytest.mark.parametrize(
    ("written", "key", "value"),
    [
        ("train.warmup_steps=0", "train.warmup_ratio", 0.0),
        ("train.schedule=constant", "train.warmup_ratio", 0.0),
        ("train.schedule=linear", "train.warmup_ratio", 0.1),
        ("train.batch_size=4", "train.accumulation", 1),
    ],
)
def test_what_says_the_same_in_other_words_takes_its_place(written, key, value):
    assert found(settings(written), key)[0] == value


def test_a_file_of_another_toolkit_brings_its_own_defaults(tmp_path):
    file = tmp_path / "old.yaml"
    file.write_text(
        "stage: DPO\nmodel_name_or_path: base\ntrain_dataset_path: a.jsonl\ntrain_dataset_type: erniekit\n"
        "eval_dataset_path: a.jsonl\neval_dataset_type: erniekit\noutput_dir: out\nfine_tuning: Full\nmax_steps: 5\n"
    )
    loaded = load(file, ["model.name=ernie45"], {}, {}, require=())
    assert found(loaded, "train.learning_rate")[0] == 5e-5
    assert found(loaded, "train.warmup_ratio") == (0.0, "default")
    assert found(loaded, "train.accumulation")[0] == 1


def test_a_run_that_may_be_continued_keeps_the_defaults_that_it_began_with(tmp_path):
    (tmp_path / "resolved.yaml").write_text(
        "train:\n  learning_rate: 3.0e-05  # default\n  warmup_ratio: 0.0  # default\n"
    )
    began = settings(f"run.out={tmp_path}")
    assert found(began, "train.learning_rate") == (3e-5, "default that the run began with")
    assert found(began, "train.warmup_ratio")[0] == 0.0
    assert found(began, "train.accumulation")[0] == 8
    assert found(settings(f"run.out={tmp_path}", "run.resume=never"), "train.learning_rate")[0] == 5e-7
    assert found(settings(f"run.out={tmp_path}", "train.learning_rate=1e-3"), "train.learning_rate")[0] == 1e-3


def test_an_error_about_another_setting_does_not_blame_the_method():
    located = settings().provenance.located(ConfigError.at("train.power", "wrong"))
    assert "default: train.power: wrong" in str(located)
