"""From training to a directory for FastDeploy and back, for every quantizer: train, resume, export, read, compare bits."""

import json

import numpy as np
import pytest
from erniecore_checkpoint.safetensors_io import merge_shards
from erniecore_fastdeploy.contract import STATIC
from erniecore_fastdeploy.paddle_layout import packed_of, place
from erniecore_model_check.rules import check_directory

from erniecore.api.quantizer import QuantizerCapability
from erniecore.engine.models.bundles import load_bundle
from erniecore.engine.models.quantized import apply
from erniecore.errors import Exit
from erniecore.registry import load

SIZE = (
    "hidden_size=128,intermediate_size=128,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=4,num_nextn_predict_layers=0,"
    "moe_num_experts=2,moe_k=1,moe_intermediate_size=128,moe_num_shared_experts=1,moe_layer_start_index=1,moe_layer_end_index=1"
)
WEIGHT_ONLY = {
    "wint8": {"quantization": "wint8", "is_quantized": False},
    "wint4": {"quantization": "wint4", "is_quantized": False},
    "wint4-8": {
        "quantization": "mix_quant",
        "dense_quant_type": "wint8",
        "moe_quant_type": "wint4",
        "is_quantized": False,
        "modules_to_not_convert": [f"ernie.layers.1.mlp.shared_experts.{m}_proj" for m in ("down", "up_gate")],
    },
}


@pytest.fixture(scope="module")
def base(home, tmp_path_factory):
    """A mixture of experts with sides that every form can hold."""
    from erniecore_model_init.new_model import init_model

    return init_model("ernie45-moe", SIZE, home / "tok", tmp_path_factory.mktemp("served") / "base", seed_value=3).path


def train_twice(ernie, runner, base, **changes):
    """One step, then a second one of a run that goes on."""
    same = {"model__name": "ernie45-moe", "model__path": base, **changes}
    for steps in (1, 2):
        outcome = ernie("run", *runner.words(**same, train__max_steps=steps, checkpoint__every=1)[1:])
        assert outcome.code == 0, outcome.err
    assert [event["step"] for event in runner.events("step")] == [1, 2]
    return runner.directory / "out"


def export(ernie, source, out):
    outcome = ernie("export", source, "--to", "fastdeploy", "--out", out)
    assert outcome.code == 0, outcome.err
    assert check_directory(out, "fastdeploy") == []
    return json.loads((out / "config.json").read_text()), {
        name: tensor for name, (_, tensor) in merge_shards(sorted(out.glob("model*.safetensors"))).items()
    }


def codes_of(bundle):
    """Name -> codes and scales of every packed weight, as bytes."""
    return {n: (e.stored.qweight.numpy().tobytes(), e.stored.scales.numpy()) for n, e in packed_of(bundle).items()}


@pytest.mark.parametrize("kind", WEIGHT_ONLY)
def test_weight_only(ernie, runner, base, kind):
    """The server rounds the exported numbers to the very codes beside which the adapter was trained."""
    train_twice(ernie, runner, base, quantizer__name=kind, adapter__name="lora", adapter__rank=2)
    assert ernie("quantize", base, "--to", kind, "--out", runner.directory / "codes").code == 0
    config, _ = export(ernie, runner.directory / "codes", runner.directory / "served")
    assert config["quantization_config"] == WEIGHT_ONLY[kind]
    assert "dtype" in config
    assert "torch_dtype" not in config
    trained, again = (load_bundle(runner.directory / d, tokenizer=False).bundle for d in ("codes", "served"))
    plugin = load("quantizer", kind)
    apply(plugin, plugin.Config(), again.model)
    before, after = codes_of(trained), codes_of(again)
    assert before.keys() == after.keys()
    for name, (qweight, scales) in before.items():
        assert after[name][0] == qweight, name
        np.testing.assert_allclose(after[name][1], scales, rtol=1e-6)


def test_fp8_by_tensor(ernie, runner, base):
    """Codes and scales in the file are those that were trained: parts of fused matrices have one scale in training too."""
    out = train_twice(ernie, runner, base, quantizer__name="fp8-qat")
    config, stored = export(ernie, out / "quantized", runner.directory / "served")
    section = config["quantization_config"]
    assert (section["quantization"], section["dense_quant_type"], section["is_quantized"]) == (
        "mix_quant",
        STATIC,
        True,
    )
    bundle = load_bundle(out / "quantized", tokenizer=False).bundle
    for name, entry in packed_of(bundle).items():
        qweight, scales = entry.stored.qweight.numpy(), entry.stored.scales.numpy()
        for index, public in enumerate(entry.public):
            module, position = place(public)
            own = qweight[index] if qweight.ndim == 3 else qweight
            quant_weight = stored[f"{module}.quant_weight"].load().view(np.uint8)
            scale = stored[f"{module}.weight_scale"].load()[0]
            assert scale == scales[index], name
            start = position * own.shape[1]
            assert quant_weight[:, start : start + own.shape[1]].tobytes() == own.tobytes(), name
            assert stored[f"{module}.activation_scale"].load()[0] == entry.stored.input_scale.numpy()[0]
    facts = json.loads((runner.directory / "served" / "erniecore_manifest.json").read_text())
    assert not any("rounded again" in key for key in facts)
    again = load_bundle(runner.directory / "served", tokenizer=False)
    assert any("quantized for servers" in note for note in again.notes)
    for name, entry in packed_of(bundle).items():
        np.testing.assert_array_equal(again.bundle.model.state_dict()[name].numpy(), entry.dequantize().numpy())


def test_fp8_by_blocks(ernie, runner, base):
    out = train_twice(ernie, runner, base, quantizer__name="fp8-block")
    config, stored = export(ernie, out / "quantized", runner.directory / "served")
    assert config["quantization_config"]["quant_method"] == "fp8"
    bundle = load_bundle(out / "quantized", tokenizer=False).bundle
    for entry in packed_of(bundle).values():
        for index, public in enumerate(entry.public):
            for name, tensor in ((public, entry.stored.qweight), (f"{public}_scale_inv", entry.stored.scales)):
                array = tensor.numpy()
                own = array[index] if array.ndim == 3 else array
                assert stored[name].load().tobytes() == np.ascontiguousarray(own.T).tobytes(), name
    again = load_bundle(runner.directory / "served", tokenizer=False).bundle.model.state_dict()
    for name, entry in packed_of(bundle).items():
        np.testing.assert_array_equal(again[name].numpy(), entry.dequantize().numpy())


@pytest.mark.parametrize(
    ("kind", "words", "quant_dtype"),
    [("fp8-ptq", [], STATIC), ("kv-cache", ["weights=wint8"], "wint8")],
)
def test_calibrated_with_a_cache(ernie, runner, base, kind, words, quant_dtype):
    """``fp8-ptq`` has the form of ``fp8-qat``; the scales of the cache say the largest size of each channel."""
    calib, directory = ["--calib", runner.home / "train.jsonl"], runner.directory / "codes"
    outcome = ernie("quantize", base, "--to", kind, "--out", directory, *calib, "cache=int8", *words)
    assert outcome.code == 0, outcome.err
    config, stored = export(ernie, directory, runner.directory / "served")
    section = config["quantization_config"]
    assert (section["quantization"], section["dense_quant_type"], section["moe_quant_type"]) == (
        "mix_quant",
        quant_dtype,
        quant_dtype,
    )
    assert section["kv_cache_quant_type"] == "int8"
    codec = load_bundle(directory, tokenizer=False).bundle.model.cache_codec
    for layer in range(2):
        for part, name in (("keys", "cachek_matmul"), ("values", "cachev_matmul")):
            scale = stored[f"ernie.layers.{layer}.self_attn.{name}.activation_scale"].load()
            np.testing.assert_array_equal(scale, codec.largest(layer, part).numpy().reshape([-1]))
    assert load_bundle(runner.directory / "served", tokenizer=False).bundle.model is not None


def test_floats_and_what_comes_of_them(ernie, runner, base):
    """An export that was read as numbers is an ordinary model: exported again, it says nothing of codes."""
    config, stored = export(ernie, base, runner.directory / "served")
    assert "quantization_config" not in config
    assert ernie("export", base, "--to", "hf-fp8", "--out", runner.directory / "fp8").code == 0
    config, again = export(ernie, runner.directory / "fp8", runner.directory / "again")
    assert "quantization_config" not in config
    assert again.keys() == stored.keys()


@pytest.mark.parametrize(
    ("kind", "words", "found"),
    [
        ("nf4", [], "nf4"),
        ("ccq-2.5", [], "ccq-2.5"),
        ("wint8", ["group_size=32"], "groups"),
        ("fp8-qat", ["hadamard_block=16"], "Hadamard"),
        ("fp8-qat", [], "no input scale"),
        ("awq", ["group_size=0"], "of inputs"),
        ("w8a8", [], "leaves one out"),
        ("kv-cache", [], "beside weights as they are"),
        ("fp8-ptq", ["cache=int4"], "a cache of int4"),
    ],
)
def test_forms_that_no_server_loads(ernie, refuses, runner, base, kind, words, found):
    out = runner.directory / "codes"
    calib = (
        ["--calib", runner.home / "train.jsonl"]
        if QuantizerCapability.CALIBRATE in load("quantizer", kind).capabilities
        else []
    )
    assert ernie("quantize", base, "--to", kind, "--out", out, *words, *calib).code == 0
    command = ["export", out, "--to", "fastdeploy", "--out", runner.directory / "served"]
    refuses(command, Exit.USAGE, found, remedy="export the original model")
    assert not (runner.directory / "served").exists()
