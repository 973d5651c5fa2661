"""Elastic training by the normal road: continuing bit for bit, three sizes of one run that talk, quantize and are served, the
recipe, and what is refused.
"""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_openai.config import OpenAIConfig
from erniecore_openai.serving import read_model
from erniecore_openai.state import Serving
from openai_client import Client

import erniecore
from erniecore.errors import Exit

RECIPE = Path(__file__).parents[2] / "examples" / "elastic.yaml"
SIZE = "hidden_size=32,num_hidden_layers=4,moe_layer_end_index=3,num_attention_heads=4,num_key_value_heads=2"
ELASTIC = {
    "model__name": "ernie45-moe",
    "method__name": "elastic-sft",
    "method__depths": "[2, 3]",
    "method__depth_probability": 0.5,
    "method__widths": "[4]",
    "method__selected": "[1]",
    "train__accumulation": 2,
}


@pytest.fixture(scope="module")
def model(home, tmp_path_factory):
    """A mixture of experts with four layers."""
    from erniecore_model_init.new_model import init_model

    return init_model("ernie45-moe", SIZE, home / "tok", tmp_path_factory.mktemp("four") / "m", seed_value=1).path


@pytest.mark.slow
def test_a_killed_run_continues_bit_for_bit_and_its_sizes_work(runner, model, ernie, tmp_path, monkeypatch):
    options = {**ELASTIC, "model__path": model, "checkpoint__every": 3}
    runner.complete("straight", **options)
    for step in (2, 5):
        runner.kill_at(step, "killed", **options)
    runner.complete("killed", **options)
    assert runner.curve("killed") == runner.curve("straight")
    assert runner.tensors(8, "killed") == runner.tensors(8, "straight")
    steps = runner.events("step", "straight")
    assert {name for event in steps for name in event} >= {"elastic/whole_loss", "elastic/reduced_loss"}
    run = runner.directory / "straight"
    recorded = json.loads((run / "expert-usage.json").read_text())
    usage = load_checkpoint(run / "ckpt" / "step-00000008").tensors["objective"]["expert_usage"]
    np.testing.assert_array_equal(np.float32(recorded["assignments"]), usage)
    sizes = {"shallow": ("--depth", 3), "narrow": ("--experts", 4), "small": ("--depth", 2, "--experts", 4, "--k", 1)}
    for name, words in sizes.items():
        out = tmp_path / name
        for command in (
            ("extract", run, *words, "--out", out),
            ("quantize", out, "--to", "wint8", "--out", tmp_path / f"{name}-wint8"),
            ("chat", "--model", out, "--max-new-tokens", 3),
            ("eval", "--model", tmp_path / f"{name}-wint8", "--data", runner.home / "eval.jsonl"),
        ):
            monkeypatch.setattr(sys, "stdin", io.StringIO("1 plus 2\n"))
            outcome = ernie(*command)
            assert outcome.code == 0, (command, outcome.err)
    status, answer = served(tmp_path / "small")
    assert status == 200
    assert 0 < answer["usage"]["completion_tokens"] <= 3
    runner.run("more", model__name="ernie45-moe", model__path=tmp_path / "small", train__max_steps=2)
    assert runner.events("step", "more")[-1]["step"] == 2


def served(directory):
    """The answer of the server for the model in ``directory``."""
    model = read_model(OpenAIConfig(name="tiny", rows=1), directory)
    model.engine.start()
    serving = Serving(OpenAIConfig())
    serving.open(model)
    try:
        return Client(serving).complete("1 plus 2", max_tokens=3)
    finally:
        serving.close()
        model.engine.stop(drain=False)


def test_the_recipe_runs(runner, home, ernie, tmp_path):
    text = tmp_path / "corpus.txt"
    text.write_text("\n".join("the quick brown fox jumps over dogs" for _ in range(60)))
    words = [f"model.tokenizer={home / 'tok'}", "model.architecture={vocab_size: 320}", f"data.train={text}"]
    small = ["train.max_steps=2", "train.warmup_steps=1", "train.decay_steps=1", "log.report=false"]
    outcome = ernie("run", RECIPE, *words, *small, f"run.out={tmp_path / 'out'}")
    assert outcome.code == 0, outcome.err
    assert erniecore.load_model(tmp_path / "out") is not None


def test_sizes_that_do_not_fit_are_refused_before_a_step(runner, model, refuses):
    base = {"model__name": "ernie45-moe", "model__path": model, "method__name": "elastic-sft"}
    for changes, key, message in (
        ({}, "method.depths", "there is nothing elastic"),
        ({"method__depths": "[4]"}, "method.depths", "4 layers"),
        ({"method__widths": "[8]"}, "method.widths", "choose 1 to 7"),
        ({"method__widths": "[4]", "method__expert_groups": 3}, "method.expert_groups", "multiples of it"),
        ({"method__selected": "[2]"}, "method.selected", "choose 1 to 1"),
        ({"method__retain": 0.5}, "method.retain", "there is no pipeline"),
    ):
        refuses(["run", *runner.words(**base, **changes)], Exit.USAGE, key, remedy=message)
