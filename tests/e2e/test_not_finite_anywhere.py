"""One value that is not finite, put in at every place between loading and exporting, in an early step and in the last: it is
seen, and no file of a run has it. A run that goes back to a checkpoint from before, or passes over the step, may end well.
"""

import json
import math
import shutil

import numpy as np
import pytest
from erniecore_checkpoint.safetensors_io import open_tensors
from erniecore_checkpoint.tensors import all_finite, contiguous_bytes
from safetensors.numpy import load_file, save_file

from erniecore.engine.optimizers.adamw import AdamW
from erniecore.engine.training.ema import Ema
from erniecore.engine.training.trainer import Trainer
from erniecore.errors import Exit

STEPS = 3
RUN = {"train__max_steps": STEPS, "checkpoint__every": 1, "train__max_skips": 0, "checkpoint__keep": 9}


def put(tensor, value):
    """``value`` as one of the numbers of ``tensor``."""
    import paddle

    with paddle.no_grad():
        changed = tensor.astype("float32").numpy().copy()
        changed.flat[changed.size // 2] = value
        tensor.set_value(paddle.to_tensor(changed).astype(tensor.dtype))


def slot_of(optimizer):
    return next(slot for slot in optimizer.slots if slot.gradient is not None)


def spoil_weight(trainer, value):
    put(slot_of(trainer.state.optimizer).target, value)


def spoil_gradient(trainer, output, value):
    put(slot_of(trainer.state.optimizer).parameter.grad, value)


def spoil_loss(trainer, output, value):
    total, weight = output.metrics["loss"]
    output.metrics["loss"] = (total * 0 + value, weight)


def in_optimizer(name):
    def spoil(optimizer, rate, scale, value):
        slot = slot_of(optimizer)
        put(slot.target if name == "target" else slot.state[name], value)

    return spoil


def spoil_average(ema, value):
    put(next(iter(ema.state_tensors().values())), value)


#: place -> the method that is preceded by the spoiling, and what spoils
PLACES = {
    "loss": (Trainer, "_reduce", spoil_loss),
    "gradient": (Trainer, "_reduce", spoil_gradient),
    "weight, before the update": (AdamW, "step", in_optimizer("target")),
    "first moment": (AdamW, "step", in_optimizer("first")),
    "second moment": (AdamW, "step", in_optimizer("second")),
    "average of the weights": (Ema, "update", spoil_average),
    "weight, after the update": (Ema, "update", lambda ema, value: put(next(iter(ema._parameters.values())), value)),
}


@pytest.fixture
def spoiled(monkeypatch):
    """``spoiled(place, value, step)``: once, before the call of ``step`` of the method."""

    def arrange(place, value, step):
        owner, name, spoil = PLACES[place]
        real, calls = getattr(owner, name), []

        def method(self, *arguments):
            calls.append(name)
            if len(calls) == step:
                spoil(self, *arguments, value)
            return real(self, *arguments)

        monkeypatch.setattr(owner, name, method)
        return calls

    return arrange


def assert_finite(directory):
    """Nothing that is not finite in any file of weights or state below; there are such files."""
    files = list(directory.rglob("*.safetensors"))
    for file in files:
        for name, tensor in open_tensors(file).items():
            assert all_finite(contiguous_bytes(tensor, name), tensor.dtype), (file, name)
    return files


KINDS = {
    "full": {},
    "lora": {"adapter__name": "lora", "adapter__rank": 4},
    "narrow": {"optimizer__moments": "bfloat16"},
}
CASES = [("full", place, value) for place in PLACES for value in (math.nan, math.inf)]
CASES += [
    (kind, place, math.nan) for kind in ("lora", "narrow") for place in PLACES if place not in ("loss", "gradient")
]


@pytest.mark.parametrize("step", [2, STEPS])
@pytest.mark.parametrize(("kind", "place", "value"), CASES)
def test_a_value_that_is_not_finite_is_seen_and_never_kept(ernie, runner, spoiled, kind, place, value, step):
    calls = spoiled(place, value, step)
    outcome = ernie("run", *runner.words(**RUN, train__ema=0.5, **KINDS[kind]))
    assert len(calls) >= step
    assert outcome.code in (0, Exit.NUMERICS), outcome
    out = runner.directory / "out"
    assert assert_finite(out)
    if outcome.code == 0:
        assert {event["kind"] for event in runner.events("warning")} & {"numerics", "rollback"}
    else:
        assert not [*out.glob("model"), *out.glob("adapter")]


@pytest.mark.parametrize("place", ["first", "second", "momentum"])
def test_muon_tells_of_its_state(ernie, runner, monkeypatch, place):
    from erniecore_muon.muon import Muon

    real = Muon.step

    def step(self, rate, scale=1.0):
        slots = self.matrices if place == "momentum" else self.adamw.slots
        put(next(slot for slot in slots if slot.gradient is not None).state[place], math.nan)
        real(self, rate, scale)

    monkeypatch.setattr(Muon, "step", step)
    outcome = ernie("run", *runner.words(**{**RUN, "train__max_rollbacks": 0}, optimizer__name="muon"))
    assert outcome.code == Exit.NUMERICS
    assert "step 1: the update made this weight or state infinite or NaN" in outcome.err
    assert not assert_finite(runner.directory / "out")


def spoiled_file(file, value=math.nan):
    tensors = load_file(file)
    name = sorted(tensors)[0]
    tensors[name] = tensors[name].copy()
    tensors[name].flat[0] = value
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.fixture
def spoiled_base(home, tmp_path):
    """A model directory of which nothing but a weight says that something is wrong."""
    model = shutil.copytree(home / "base", tmp_path / "model")
    (model / "erniecore_manifest.json").unlink()
    spoiled_file(model / "model.safetensors")
    return model


def test_such_a_base_is_neither_trained_nor_written_in_any_form(ernie, home, runner, spoiled_base):
    out = runner.directory / "written"
    for words in (
        ["run", *runner.words(model__path=spoiled_base)],
        ["run", *runner.words(model__path=spoiled_base, adapter__name="lora")],
        ["quantize", spoiled_base, "--to", "wint8", "--out", out],
        ["quantize", spoiled_base, "--to", "wint4", "--out", out],
        ["export", spoiled_base, "--to", "safetensors", "--out", out],
        ["export", spoiled_base, "--to", "gguf", "--out", out],
        ["export", spoiled_base, "--to", "safetensors", "--dtype", "bfloat16", "--out", out],
    ):
        outcome = ernie(*words)
        assert outcome.code in (Exit.NUMERICS, Exit.CHECKPOINT), (words, outcome)
        assert "finite" in outcome.err, (words, outcome.err)
        assert not [
            *runner.directory.glob("out/ckpt/*"),
            *runner.directory.glob("out/*/*.safetensors"),
            *out.rglob("*"),
        ]


#: quantizer -> the tensors beside whole numbers that its files have; of those of bits of E4M3, 0x7F is NaN
PACKED = {
    "wint8": {"weight_scale"},
    "wint4": {"weight_scale"},
    "wint4-8": {"weight_scale"},
    "nf4": {"weight_scale"},
    "ccq-2.5": {"super_scale"},
    "ccq-2.06": {"super_scale", "code_scale", "code_zp"},
    "fp8-block": {"weight_scale", "quant_weight"},
    "gptq": {"weight_scale"},
    "awq": {"weight_scale", "input_scale"},
    "fp8-ptq": {"weight_scale", "activation_scale", "quant_weight"},
    "w8a8": {"weight_scale", "input_scale", "activation_scale"},
    "w4a8": {"weight_scale", "input_scale", "activation_scale"},
    "kv-cache": {"keys_scale", "values_scale"},
}


@pytest.mark.parametrize("quantizer", PACKED)
def test_such_scales_and_codes_of_a_packed_model_are_refused_when_it_is_loaded(ernie, home, runner, quantizer):
    """One number of each kind of tensor that a quantizer's files have, by file and tensor, wherever the model is used."""
    packed, calib = runner.directory / "packed", ["--calib", home / "train.jsonl"]
    calib = calib if quantizer in ("gptq", "awq", "fp8-ptq", "w8a8", "w4a8", "kv-cache") else []
    done = ernie("quantize", home / "base", "--to", quantizer, *calib, "--out", packed)
    assert done.code == 0, done
    (file,) = packed.glob("weights-*.safetensors")
    (packed / "erniecore_manifest.json").unlink()  # as somebody else's program wrote it
    whole = load_file(file)
    floats = {name: math.nan for name, values in whole.items() if values.dtype.kind == "f"}
    if "quant_weight" in PACKED[quantizer]:
        floats |= {name: 0x7F for name in whole if name.endswith("quant_weight")}
    kinds = {name.rpartition(".")[2]: name for name in floats}
    assert kinds.keys() == {*PACKED[quantizer], "weight"}
    for name in kinds.values():
        spoiled = {**whole, name: whole[name].copy()}
        spoiled[name].flat[spoiled[name].size // 2] = floats[name]
        save_file(spoiled, file, metadata={"format": "pt"})
        outcome = ernie("generate", "--model", packed, "--prompt", "a", "--max-new-tokens", 1)
        assert outcome.code == Exit.NUMERICS, (name, outcome)
        assert f"{file}: {name}" in outcome.err
        assert "not finite" in outcome.err
    outcome = ernie("run", *runner.words(model__path=packed, adapter__name="lora"))
    upon = quantizer in ("wint8", "wint4", "wint4-8", "nf4", "ccq-2.5", "ccq-2.06")  # others are not trained upon
    assert outcome.code == (Exit.NUMERICS if upon else Exit.USAGE), outcome
    assert not [*runner.directory.glob("out/ckpt/*")]


def test_such_an_adapter_is_neither_merged_nor_used(ernie, home, runner):
    runner.run(**{**RUN, "train__max_steps": 1}, adapter__name="lora")
    adapter = runner.directory / "out" / "adapter"
    spoiled_file(adapter / "adapter_model.safetensors")
    for manifest in adapter.glob("*manifest.json"):  # as another toolkit writes it
        manifest.unlink()
    merged = runner.directory / "merged"
    outcome = ernie("merge", adapter, "--base", home / "base", "--out", merged)
    assert outcome.code in (Exit.NUMERICS, Exit.CHECKPOINT), outcome
    assert "finite" in outcome.err
    assert not merged.exists()


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
@pytest.mark.parametrize("key", ["weight", "label"])
def test_such_numbers_in_rows_are_errors_of_the_line(ernie, home, runner, key, value):
    row = json.loads((home / "train.jsonl").read_text().splitlines()[0])
    text = json.dumps({**row, key: 0}).replace(f'"{key}": 0', f'"{key}": {value}')
    rows = runner.directory / "rows.jsonl"
    rows.write_text(json.dumps(row) + "\n" + text + "\n")
    outcome = ernie("run", *runner.words(data__train=rows))
    assert outcome.code == Exit.DATA, outcome
    assert "ERN-D024" in outcome.err
    assert f"{rows}:2" in outcome.err
    assert not (runner.directory / "out" / "ckpt").exists()


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf"])
@pytest.mark.parametrize("key", ["weight", "train.learning_rate", "train.weight_decay"])
def test_such_numbers_in_settings_are_refused(ernie, home, runner, key, value):
    named = {"data__train": f"[{{path: {home / 'train.jsonl'}, weight: {value}}}]"}
    changes = named if key == "weight" else {key.replace(".", "__"): value}
    outcome = ernie("run", *runner.words(**changes))
    assert outcome.code == Exit.USAGE, outcome
    assert "finite" in outcome.err


def test_a_state_from_elsewhere_is_not_continued_with(ernie, runner, monkeypatch):
    """A checkpoint whose hashes agree, of a program that looks at nothing."""
    from erniecore_checkpoint import safetensors_write

    from erniecore.engine.training import saving

    real = saving.CheckpointSaver.save

    def save(self, state, **how):
        put(slot_of_state(state.optimizer).state["second"], math.nan)
        with monkeypatch.context() as patch:
            patch.setattr(safetensors_write, "all_finite", lambda data, dtype: True)
            return real(self, state, **how)

    with monkeypatch.context() as patch:
        patch.setattr(saving.CheckpointSaver, "save", save)
        ernie("run", *runner.words(**{**RUN, "train__max_rollbacks": 0, "run__until": 1}))
    assert len(list((runner.directory / "out" / "ckpt").glob("step-*"))) == 1
    outcome = ernie("run", *runner.words(**{**RUN, "train__max_rollbacks": 0}))
    assert outcome.code in (Exit.NUMERICS, Exit.CHECKPOINT), outcome
    assert not (runner.directory / "out" / "model").exists()
    assert len(list((runner.directory / "out" / "ckpt").glob("step-*"))) == 1


def slot_of_state(optimizer):
    return next(slot for slot in optimizer.slots if np.prod(slot.parameter.shape))
