"""A quantized base through the command line: plan, train an adapter, resume bit for bit, use it, merge it, bad settings."""

import json
import re

import numpy as np
import pytest
from erniecore_checkpoint.floats import read_tensors
from erniecore_checkpoint.reader import load_checkpoint
from safetensors.numpy import save_file

from erniecore.errors import Exit

pytestmark = pytest.mark.slow


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
    assert "quantized by wint4-8" in notes
    assert beside == answer(ernie, "--model", runner.home / "moe", "--adapter", out)[0]
    outcome = ernie("merge", out, "--base", runner.home / "moe", "--out", merged, "--json")
    assert outcome.code == 0, outcome.err
    assert any("quantized by wint4-8" in note for note in json.loads(outcome.out)["notes"])
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
    refuses(["run", *named], Exit.USAGE, "quantizer.group_size", remedy="another run.out")


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
    refuses(["run", *named], Exit.USAGE, "quantizer.layers", remedy="selected is wint4-8")


def test_weights_that_are_not_finite(refuses, runner, tmp_path):
    base = tmp_path / "nan"
    base.mkdir()
    for file in (runner.home / "moe").iterdir():
        if file.name not in ("erniecore_manifest.json", "model.safetensors"):
            (base / file.name).write_bytes(file.read_bytes())
    tensors = read_tensors(runner.home / "moe" / "model.safetensors")
    name = "model.layers.1.mlp.experts.1.up_proj.weight"
    tensors[name] = np.where(np.arange(tensors[name].size).reshape(tensors[name].shape) == 3, np.nan, tensors[name])
    save_file(tensors, base / "model.safetensors")  # ours refuses to
    refuses(["run", *words(runner, model__path=base)], Exit.NUMERICS, name, remedy="finite")


@pytest.mark.parametrize(("kind", "limit"), [("wint8", 1.5), ("wint4-8", 1.5), ("nf4", 1.2)])
def test_quantized_directory(ernie, runner, kind, limit):
    out, base = runner.directory / kind, runner.home / "moe"
    outcome = ernie("quantize", base, "--to", kind, "--out", out, "--json")
    assert outcome.code == 0, outcome.err
    done = json.loads(outcome.out)
    ratios = [layer["sqnr_db"] for layer in done["layers"]]
    assert ratios == sorted(ratios)
    assert ratios[0] > 14
    assert done["num_bytes"] == sum(f.stat().st_size for f in out.glob("weights-*")) - header_bytes(out)
    assert done["source_bytes"] == sum(f.stat().st_size for f in base.glob("*.safetensors")) < done["peak_memory"]
    assert done["seconds"] > 0
    assert answer(ernie, "--model", out)[0]
    section = json.loads((out / "config.json").read_text())["quantization_config"]
    assert (section["quant_method"], section["quantizer"]) == ("erniecore", kind)


def header_bytes(directory):
    return sum(8 + int.from_bytes(f.read_bytes()[:8], "little") for f in directory.glob("weights-*"))


def test_codes_of_a_directory_are_those_of_training(ernie, runner):
    import erniecore
    from erniecore.host import assemble
    from erniecore.registry import load

    out, base = runner.directory / "out", runner.home / "moe"
    outcome = ernie("quantize", base, "--to", "wint4", "--out", out, "group_size=8")
    assert outcome.code == 0
    assert re.search(r"each\) in \S+ m?s, \d+ MB/s of the source, peak memory \S+ [MG]iB; verified", outcome.out)
    plugin = load("quantizer", "wint4")
    model = assemble({"quantizer": plugin}).call(
        plugin,
        "ernie_quantize_model",
        config=plugin.Config(group_size=8),
        model=erniecore.load_model(base),
        phase="train",
    )
    stored = erniecore.load_model(out).state_dict()
    assert stored.keys() == model.state_dict().keys()
    assert any(name.endswith("quant_weight") for name in stored)
    for name, tensor in model.state_dict().items():
        assert stored[name].numpy().tobytes() == tensor.numpy().tobytes(), name


def test_adapter_goes_onto_the_quantized_directory(ernie, refuses, runner):
    out, base = runner.directory / "quantized", runner.home / "moe"
    assert ernie("run", *words(runner)).code == 0
    assert ernie("quantize", base, "--to", "wint4-8", "--out", out).code == 0
    ids, notes = answer(ernie, "--model", out, "--adapter", runner.directory / "out")
    assert ids
    assert "unquantized" not in notes
    merge = ["merge", runner.directory / "out", "--base", out, "--out", runner.directory / "merged"]
    refuses(merge, Exit.USAGE, "quantized weights", remedy="merge into the original model")


def test_quantized_directory_is_no_base_no_source_and_no_export(ernie, refuses, runner):
    out, other = runner.directory / "quantized", runner.directory / "other"
    assert ernie("quantize", runner.home / "moe", "--to", "wint8", "--out", out).code == 0
    again = ["quantize", out, "--to", "nf4", "--out", other]
    refuses(again, Exit.USAGE, "quantized already", remedy="quantize the original model")
    refuses(["export", out, "--out", other], Exit.USAGE, "are quantized", remedy="export the original model")
    refuses(["run", *words(runner, model__path=out)], Exit.USAGE, "quantized by wint8", remedy="leave --quantizer out")


@pytest.mark.parametrize(
    ("to", "word", "place", "remedy"),
    [
        ("wint5", "group_size=8", "wint5", "wint4"),
        ("wint4", "groupsize=8", "groupsize", "did you mean group_size?"),
        ("wint4", "layers=qproj", "qproj", "did you mean q_proj?"),
        ("wint4", "group_size=-1", "group_size", "≥ 0"),
        ("wint4", "nonsense", "nonsense", "key=value"),
    ],
)
def test_bad_words_of_quantize(refuses, runner, to, word, place, remedy):
    command = ["quantize", runner.home / "moe", "--to", to, "--out", runner.directory / "x", word]
    refuses(command, Exit.USAGE, place, remedy=remedy)
    assert not (runner.directory / "x").exists()


def test_damaged_codes_are_refused(ernie, refuses, runner):
    out = runner.directory / "quantized"
    assert ernie("quantize", runner.home / "moe", "--to", "wint8", "--out", out).code == 0
    file = next(out.glob("weights-*"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    refuses(["generate", "--model", out, "--prompt", "x"], Exit.CHECKPOINT, file.name, remedy="write the model again")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("gptq", ["cache=int8"]),
        ("awq", []),
        ("fp8-ptq", []),
        ("w8a8", ["activations=dynamic", "cache=fp8"]),
        ("w4a8", []),
        ("kv-cache", ["cache=int4"]),
    ],
)
def test_calibrated_directory(ernie, runner, kind, words):
    """What is written computes what was measured, with the same codes, scales and cache."""
    out, base = runner.directory / kind, runner.home / "moe"
    calib = ["--calib", runner.home / "train.jsonl", "--data", runner.home / "eval.jsonl"]
    outcome = ernie("quantize", base, "--to", kind, "--out", out, *calib, "--json", *words)
    assert outcome.code == 0, outcome.err
    done = json.loads(outcome.out)
    outcome = ernie("eval", "--model", out, "--data", runner.home / "eval.jsonl", "--json", "--max-seq-len", 512)
    assert json.loads(outcome.out)["loss"] == pytest.approx(done["after"]["loss"], rel=1e-6)
    assert done["after"]["loss"] != done["before"]["loss"]
    assert done["after"]["loss"] == pytest.approx(done["before"]["loss"], rel=0.05)
    assert all(layer["output_db"] > 5 for layer in done["layers"])
    assert (done["layers"] == []) == (kind == "kv-cache")
    cached = any(word.startswith("cache=") for word in words)
    assert (done["cache"] is not None) == cached
    if cached:
        assert done["cache"]["bytes_per_token"] < 0.3 * done["cache"]["plain_bytes_per_token"]
        assert {len(ratios) for ratios in done["cache"]["layers"].values()} == {2}


def test_calibration_data_is_asked_for_and_must_suffice(refuses, runner, tmp_path):
    command = ["quantize", runner.home / "moe", "--to", "gptq", "--out", runner.directory / "x"]
    refuses(command, Exit.USAGE, "--calib", remedy="--calib rows.jsonl")
    short = tmp_path / "short.jsonl"
    short.write_text((runner.home / "train.jsonl").read_text().splitlines()[0])
    refuses([*command, "--calib", short], Exit.DATA, "shorter than this quantizer needs", remedy="name more rows")
    assert not (runner.directory / "x").exists()
