"""Evaluation by completions, and what hubs have to do with a file."""

import json
from pathlib import Path

from erniecore_llamafactory.convert import convert
from erniecore_llamafactory.datasets import DatasetInfo
from erniecore_llamafactory.draft import Surroundings

INFO = DatasetInfo("data", json.loads(Path(__file__).with_name("fixtures").joinpath("dataset_info.json").read_text()))


def made(**given):
    return convert({"do_train": True, **given}, Surroundings(info=INFO))


def settings(**given):
    outcome = made(**given)
    assert not outcome.problems
    return {key: setting.value for key, setting in outcome.settings.items()}


def test_what_the_model_writes_is_evaluated():
    rows = {"eval_dataset": "identity", "eval_strategy": "steps", "eval_steps": 10}
    written = {"predict_with_generate": True, "load_best_model_at_end": True}
    found = settings(max_new_tokens=64, **rows, **written)
    assert found["callbacks.eval-generate.metrics"] == ["exact-match"]
    assert found["callbacks.eval-generate.max_new_tokens"] == 64
    assert found["eval.best"] == "loss"
    found = settings(metric_for_best_model="eval_rouge-l", early_stopping_steps=2, **rows, **written)
    assert (found["eval.best"], found["eval.patience"]) == ("generate/exact-match", 2)
    assert settings(**rows, **written)["callbacks.eval-generate.max_new_tokens"] == 1024
    shares = {"val_size": 0.1, "eval_strategy": "steps", "eval_steps": 10}
    assert "eval_dataset" in made(predict_with_generate=True, **shares).dropped["predict_with_generate"]
    assert "max_new_tokens" in made(max_new_tokens=64, **rows).dropped
    outcome = made(metric_for_best_model="rouge-1", early_stopping_steps=2, **rows)
    assert "predict_with_generate" in outcome.problems["metric_for_best_model"]


def test_hubs_are_named():
    assert "--push hf:" in made(push_to_hub=True).dropped["push_to_hub"]
    assert "hf:OWNER/NAME@REVISION" in made(model_revision="v2").dropped["model_revision"]
