"""Training in FP8 through the command line: learn, resume with the scales, leave codes, use them; preferences; refusals."""

import json

import pytest
from erniecore_checkpoint.floats import read_tensors
from erniecore_checkpoint.reader import load_checkpoint

from erniecore.errors import Exit


def settings(runner, **changes):
    usual = {"model__name": "ernie45-moe", "model__path": runner.home / "moe", "quantizer__name": "fp8-qat"}
    return {**usual, "train__learning_rate": 0.02, "quantizer__scale_warmup": 3, **changes}


def words(runner, **changes):
    return runner.words(**settings(runner, **changes))[1:]


def evaluated(ernie, runner, model):
    outcome = ernie("eval", "--model", model, "--data", runner.home / "eval.jsonl", "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)["loss"]


def codes(directory):
    return {p.name: p.read_bytes() for p in directory.glob("weights-*")}


def test_train_and_leave_codes(ernie, runner):
    """``quantized/`` computes what was trained, ``model/`` holds the unrounded weights, a checkpoint gives both again."""
    out, base = runner.directory / "out", runner.directory
    outcome = ernie("run", *words(runner))
    assert outcome.code == 0, outcome.err
    losses = [e["loss"] for e in runner.events("step")]
    assert losses[-1] < losses[0]
    checkpoint = out / "ckpt" / "step-00000008"
    assert evaluated(ernie, runner, out / "quantized") == evaluated(ernie, runner, checkpoint)
    assert evaluated(ernie, runner, out / "model") != evaluated(ernie, runner, out / "quantized")

    assert ernie("quantize", checkpoint, "--to", "fp8-qat", "--out", base / "again", "scale_warmup=3").code == 0
    assert codes(base / "again") == codes(out / "quantized")
    assert ernie("export", checkpoint, "--out", base / "plain").code == 0
    plain, model = (read_tensors(d / "model.safetensors") for d in (base / "plain", out / "model"))
    assert plain.keys() == model.keys()
    assert all(plain[name].tobytes() == model[name].tobytes() for name in plain)


def test_scales_are_in_the_checkpoint(ernie, runner):
    assert ernie("run", *words(runner, train__max_steps=2)).code == 0
    tensors = load_checkpoint(runner.directory / "out" / "ckpt" / "step-00000002").tensors["model"]
    scales = [name for name in tensors if name.endswith("activation_scale")]
    assert scales
    assert all(tensors[name].item() > 0 for name in scales)
    assert all(tensors[name].item() == 2 for name in tensors if name.endswith("activation_steps"))


@pytest.mark.slow
def test_killed_run_continues_bit_for_bit(runner):
    """Killed within the warm-up of the scales and after it."""
    same = settings(runner, checkpoint__every=2, optimizer__moments="bfloat16")
    runner.complete("straight", **same)
    runner.kill_at(3, "killed", **same)
    runner.kill_at(7, "killed", **same)
    runner.complete("killed", **same)
    assert runner.curve("killed") == runner.curve("straight")
    assert runner.tensors(8, "killed") == runner.tensors(8, "straight")
    assert codes(runner.directory / "killed" / "quantized") == codes(runner.directory / "straight" / "quantized")


def test_dense_model_and_moving_average(ernie, runner):
    dense = {
        "model__name": "ernie45",
        "model__path": runner.home / "base",
        "train__ema": 0.5,
        "train__recompute": "full",
    }
    assert ernie("run", *words(runner, quantizer__weight_gradient="e5m2", **dense)).code == 0
    out = runner.directory / "out"
    assert evaluated(ernie, runner, out / "quantized") == evaluated(ernie, runner, out / "ckpt" / "step-00000008")


def test_preferences_start_at_their_reference(ernie, runner, tmp_path):
    """The frozen reference rounds as the policy does, so the first loss is ln 2."""
    rows = tmp_path / "pairs.jsonl"
    pair = {"src": ["1 plus 2"], "tgt": [], "response": [["3"], ["4"]], "sort": [1, 0]}
    rows.write_text("\n".join(json.dumps(pair) for _ in range(8)))
    same = {"method__name": "dpo", "data__train": rows, "data__format": "erniekit", "train__max_steps": 3}
    assert ernie("run", *words(runner, **same)).code == 0
    losses = [e["loss"] for e in runner.events("step")]
    assert losses[0] == pytest.approx(0.6931, abs=2e-4)
    assert losses[-1] < losses[0]


def test_an_adapter_is_refused(refuses, runner):
    named = words(runner, adapter__name="lora")
    refuses(["run", *named], Exit.USAGE, "adapter", "trains the weights themselves", remedy="wint8")


def test_other_settings_do_not_continue(ernie, refuses, runner):
    assert ernie("run", *words(runner, train__max_steps=2)).code == 0
    named = words(runner, train__max_steps=4, quantizer__hadamard_block=0, run__resume="must")
    refuses(["run", *named], Exit.USAGE, "quantizer.hadamard_block", remedy="another run.out")
