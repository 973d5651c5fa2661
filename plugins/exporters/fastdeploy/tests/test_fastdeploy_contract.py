"""The Paddle layout for FastDeploy: a dense model in it, and which rule each kind of damage breaks."""

import json
import shutil

import pytest
from erniecore_checkpoint.floats import read_tensors, write_tensors
from erniecore_export.exporting import export_directory
from erniecore_fastdeploy.contract import layout_of
from erniecore_fastdeploy.export import check_rounding
from erniecore_fastdeploy.paddle_layout import Packed, packed_of
from erniecore_model_check.rules import check_directory
from erniecore_model_init.new_model import init_model
from erniecore_quantize.quantize import quantize_directory

from erniecore.engine.models.bundles import load_bundle
from erniecore.errors import UsageError
from erniecore.types.model import StoredWeight


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A dense model in ``wint8`` as ``codes``, and for FastDeploy as ``served``."""
    from erniecore_text.training import train

    home = tmp_path_factory.mktemp("paddle")
    (home / "tok").mkdir()
    train([f"{a} plus {b} is {a + b}" for a in range(31) for b in range(31)], 300).save(home / "tok")
    size = (
        "hidden_size=32,intermediate_size=48,num_hidden_layers=1,num_attention_heads=4,num_key_value_heads=2,head_dim=8"
    )
    init_model("ernie45", size, home / "tok", home / "base", seed_value=1)
    quantize_directory(home / "base", home / "codes", "wint8")
    export_directory(home / "codes", home / "served", "fastdeploy")
    return home


def test_a_dense_model_reads_back_as_its_numbers(served):
    assert check_directory(served / "served", "fastdeploy") == []
    before, after = (load_bundle(served / name).bundle for name in ("codes", "served"))
    weights = after.model.state_dict()
    for name, entry in packed_of(before).items():
        assert entry.dequantize().numpy().tobytes() == weights[name].numpy().tobytes(), name


@pytest.mark.parametrize(("largest", "fits"), [(127, True), (126, False)])
def test_codes_that_the_server_would_change_are_refused(largest, fits):
    """The server's scale is the largest number over 127: another largest quantized value shifts the others."""
    import paddle

    qweight, scales = paddle.to_tensor([[largest, -60], [1, 127]]).astype("float32"), paddle.to_tensor([0.5, 0.25])

    class Layer:
        def dequantized(self, parameter):
            return qweight * scales

    entry = Packed(Layer(), "weight", StoredWeight("int8", qweight.T.astype("int8"), scales), ("a.weight",))
    if fits:
        check_rounding(entry, "float32", "a")
    else:
        with pytest.raises(UsageError, match="1 values that its own rounding would change"):
            check_rounding(entry, "float32", "a")


def test_the_public_rules_do_not_take_it(served):
    assert "one-dtype-key" in {broken.rule for broken in check_directory(served / "served")}


def section(**changes):
    return lambda config: config["quantization_config"].update(changes)


CONFIG = {
    "layout": lambda c: c.update(torch_dtype="float32"),
    "served": lambda c: c.update(architectures=["Other"]),
    "rope-base": lambda c: c.pop("rope_theta"),
    "sizes": lambda c: c.pop("hidden_size"),
    "paddle-names": lambda c: c.update(num_hidden_layers=2),
    "paddle-head": lambda c: c.update(tie_word_embeddings=False),
    "method": section(quantization="wint5"),
    "is-quantized": section(is_quantized=True),
    "static-fp8-whole": section(quantization="tensor_wise_fp8"),
}


@pytest.mark.parametrize("rule", CONFIG)
def test_a_broken_key_is_named(served, tmp_path, rule):
    shutil.copytree(served / "served", tmp_path / "x")
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    CONFIG[rule](config)
    (tmp_path / "x" / "config.json").write_text(json.dumps(config))
    assert rule in {broken.rule for broken in check_directory(tmp_path / "x", "fastdeploy")}


def renamed(name, new):
    return lambda tensors: tensors.update({new: tensors.pop(name)})


QKV = "ernie.layers.0.self_attn.qkv_proj"
TENSORS = {
    "no-public-names": renamed("ernie.norm.weight", "model.norm.weight"),
    "weight-only-online": renamed(f"{QKV}.weight", f"{QKV}.quant_weight"),
    "static-fp8": renamed(f"{QKV}.weight", f"{QKV}.quant_weight"),
    "paddle-names": lambda tensors: tensors.update({f"{QKV}.weight": tensors[f"{QKV}.weight"].T.copy()}),
    "paddle-router": lambda t: t.update({"ernie.layers.0.mlp.gate.weight": t["ernie.norm.weight"].astype("float16")}),
}


@pytest.mark.parametrize("rule", TENSORS)
def test_a_broken_tensor_is_named(served, tmp_path, rule):
    shutil.copytree(served / "served", tmp_path / "x")
    tensors = dict(read_tensors(tmp_path / "x" / "model.safetensors"))
    TENSORS[rule](tensors)
    (tmp_path / "x" / "model.safetensors").unlink()
    write_tensors(tmp_path / "x" / "model.safetensors", tensors)
    assert rule in {broken.rule for broken in check_directory(tmp_path / "x", "fastdeploy")}


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        ({"torch_dtype": "float32", "dtype": "float32"}, ""),
        ({"torch_dtype": "float32"}, "torch"),
        ({"dtype": "float32", "transformers_version": "4.57.0"}, "torch"),
        ({"dtype": "float32", "transformers_version": "4.56.0"}, "paddle"),
        ({"dtype": "float32"}, "paddle"),
        ({}, ""),
    ],
)
def test_config_decides_the_layout(config, layout):
    assert layout_of(config) == layout
