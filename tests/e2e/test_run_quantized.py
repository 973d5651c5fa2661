"""A quantised base through the command line: plan, train an adapter, resume bit for bit, use it, merge it, bad settings."""

import json

import numpy as np
import pytest

from erniecore.checkpoint import load_checkpoint
from erniecore.checkpoint.floats import read_tensors, write_tensors
from erniecore.errors import Exit


def settings(runner, **changes):
    usual = {"model__name": "ernie45-moe", "model__path": runner.home / "moe", "quantizer__name": "wint4-8"}
    usual |= {"adapter__name": "lora", "adapter__rank": 4, "train__learning_rate": 0.02}
    return {**usual, **changes}


def words(runner, **changes):
    return runner.words(**settings(runner, **changes))[1:]


def answer(ernie, *words):
    outcome = ernie("generate", *words, "--prompt", "3 plus 4", "--max-new-tokens", 6, "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)["ids"], outcome.err


def plan_of(ernie, runner, **changes):
    outcome = ernie("run", *words(runner, **changes), "--dry-run", "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_train_use_merge(ernie, runner):
    out, merged = runner.directory / "out", runner.directory / "merged"
    outcome = ernie("run", *words(runner))
    assert outcome.code == 0, outcome.err
    losses = [e["loss"] for e in runner.events("step")]
    assert losses[-1] < losses[0]
    checkpoint = load_checkpoint(out / "ckpt" / "step-00000008")
    assert all(".lora." in name for name in checkpoint.tensors["model"])

    beside, notes = answer(ernie, "--model", out)
    assert "trained on weights quantised by wint4-8" in notes
    assert beside == answer(ernie, "--model", runner.home / "moe", "--adapter", out)[0]
    outcome = ernie("merge", out, "--base", runner.home / "moe", "--out", merged, "--json")
    assert outcome.code == 0, outcome.err
    assert any("quantised by wint4-8" in note for note in json.loads(outcome.out)["notes"])
    assert answer(ernie, "--model", merged)[0] == beside


def test_plan_counts_packed_bytes(ernie, runner):
    plain, packed = plan_of(ernie, runner, quantizer__name=None), plan_of(ernie, runner)
    count, size = packed["parameters"]["packed"], packed["parameters"]["packed_bytes"]
    assert 0 < size < count
    assert plain["weights"] - packed["weights"] == 4 * count - size
    assert packed["checkpoint"] == plain["checkpoint"]
    assert ernie("run", *words(runner, train__max_steps=1)).code == 0
    assert runner.events("checkpoint")[0]["bytes"] == packed["checkpoint"]


@pytest.mark.parametrize("quantizer", ["wint8", "wint4", "nf4"])
def test_every_other_quantizer_trains(ernie, runner, quantizer):
    assert ernie("run", *words(runner, quantizer__name=quantizer, adapter__name="dora")).code == 0
    losses = [e["loss"] for e in runner.events("step")]
    assert losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["lora", "dora"])
def test_killed_run_continues_bit_for_bit(runner, adapter):
    same = settings(runner, adapter__name=adapter, adapter__dropout=0.1, checkpoint__every=2, quantizer__group_size=16)
    runner.complete("straight", **same)
    runner.kill_at(5, "killed", **same)
    runner.complete("killed", **same)
    assert runner.curve("killed") == runner.curve("straight")
    assert runner.tensors(8, "killed") == runner.tensors(8, "straight")


def test_other_codes_are_not_continued(ernie, refuses, runner):
    assert ernie("run", *words(runner, train__max_steps=2)).code == 0
    named = words(runner, train__max_steps=4, quantizer__group_size=8, run__resume="must")
    refuses(["run", *named], Exit.CHECKPOINT, "quantizer.group_size", remedy="run.out")


def test_without_an_adapter_nothing_would_be_trained(refuses, runner):
    named = [w for w in words(runner) if not w.startswith("adapter")]
    refuses(["run", *named], Exit.USAGE, "quantizer", "keeps the weights fixed", remedy="--adapter lora")


def test_pattern_that_matches_nothing(refuses, runner):
    named = words(runner, quantizer__int8="qproj")
    refuses(
        ["run", *named], Exit.USAGE, "quantizer.int8", "'qproj' matches no linear layer", remedy="did you mean q_proj?"
    )


def test_key_of_another_quantizer(refuses, runner):
    named = words(runner, quantizer__layers="*")
    refuses(["run", *named], Exit.USAGE, "quantizer.layers", remedy="unknown key")


def test_weights_that_are_not_finite(refuses, runner, tmp_path):
    base = tmp_path / "nan"
    base.mkdir()
    for file in (runner.home / "moe").iterdir():
        if file.name not in ("erniecore_manifest.json", "model.safetensors"):
            (base / file.name).write_bytes(file.read_bytes())
    tensors = read_tensors(runner.home / "moe" / "model.safetensors")
    name = "model.layers.1.mlp.experts.1.up_proj.weight"
    tensors[name] = np.where(np.arange(tensors[name].size).reshape(tensors[name].shape) == 3, np.nan, tensors[name])
    write_tensors(base / "model.safetensors", tensors)
    refuses(["run", *words(runner, model__path=base)], Exit.NUMERICS, name, remedy="finite")
