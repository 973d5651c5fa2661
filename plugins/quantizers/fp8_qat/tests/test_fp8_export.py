"""FP8 by blocks for servers: codes and scales against ml_dtypes, which matrices stay, and the rules of the contract."""

import json

import ml_dtypes
import numpy as np
import pytest
from erniecore_checkpoint.safetensors_io import merge_shards
from erniecore_checkpoint.tensors import Tensor
from erniecore_fastdeploy.contract import PADDLE, SHARED
from erniecore_fp8_qat.hf_export import encode, quantized_tensors
from erniecore_model_check.rules import HF_RULES, check_directory

from erniecore.engine.models.served_weights import decode_blocks
from erniecore.errors import PluginNotFound


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_blocks_are_rounded_as_ml_dtypes_does():
    dequantized = normal(256, 384) * np.exp(4 * normal(256, 384, seed=1))
    dequantized[:128, :128] = 0
    qweight, scales = encode(dequantized)
    for i, j in np.ndindex(2, 3):
        part = (slice(128 * i, 128 * (i + 1)), slice(128 * j, 128 * (j + 1)))
        largest = np.abs(dequantized[part]).max() / np.float32(448)
        expected = np.float32(2) ** np.ceil(np.log2(largest)) if largest else np.float32(1)
        assert scales[i, j] == expected
        rounded = (dequantized[part] / expected).astype(ml_dtypes.float8_e4m3fn)
        np.testing.assert_array_equal(qweight[part], rounded.view(np.uint8))
        np.testing.assert_array_equal(decode_blocks(qweight, scales)[part], rounded.astype(np.float32) * expected)


@pytest.mark.parametrize("power", [-3, 0, 8])
def test_scale_of_a_power_of_two_is_itself(power):
    assert encode(np.full((128, 128), 448 * 2.0**power, np.float32))[1] == 2.0**power


def test_what_does_not_fit_stays_and_is_named():
    shapes = {
        "model.embed_tokens.weight": (256, 128),
        "model.layers.0.self_attn.q_proj.weight": (256, 128),
        "model.layers.0.self_attn.k_proj.weight": (64, 128),
        "model.layers.1.mlp.gate.weight": (4, 128),
        "model.layers.1.mlp.experts.0.up_proj.weight": (128, 128),
        "model.layers.1.mlp.experts.0.down_proj.weight": (128, 96),
        "model.layers.2.mlp.experts.0.up_proj.weight": (128, 128),
        "model.norm.weight": (128,),
    }
    plain = {name: Tensor("F32", shape, lambda shape=shape: normal(*shape)) for name, shape in shapes.items()}
    tensors, kept = quantized_tensors(plain)
    packed = {name for name, tensor in tensors.items() if tensor.dtype == "F8_E4M3"}
    assert packed == {"model.layers.0.self_attn.q_proj.weight", "model.layers.2.mlp.experts.0.up_proj.weight"}
    assert kept == [
        "lm_head",
        "model.embed_tokens",
        "model.layers.0.self_attn.k_proj",
        "model.layers.1.mlp.experts",
        "model.layers.1.mlp.gate",
    ]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A small mixture of experts as ``hf-fp8`` writes it, and as ``hf`` does."""
    from erniecore_export.exporting import export_directory
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    home = tmp_path_factory.mktemp("fp8")
    (home / "tok").mkdir()
    train([f"{a} plus {b} is {a + b}" for a in range(31) for b in range(31)], 300).save(home / "tok")
    size = (
        "hidden_size=256,intermediate_size=128,num_hidden_layers=2,num_attention_heads=2,num_key_value_heads=1,"
        "moe_num_experts=2,moe_k=1,moe_intermediate_size=128,moe_num_shared_experts=1,moe_layer_start_index=1,"
        "moe_layer_end_index=1,num_nextn_predict_layers=0"
    )
    init_model("ernie45-moe", size, home / "tok", home / "base", seed_value=1)
    for exporter in ("hf-fp8", "hf"):
        export_directory(home / "base", home / exporter, exporter)
    return home


@pytest.mark.parametrize("contract", ["hf", "fastdeploy"])
@pytest.mark.parametrize("exporter", ["hf", "hf-fp8"])
def test_exports_keep_the_contract(exported, exporter, contract):
    assert check_directory(exported / exporter, contract) == []


def test_an_unknown_contract_gets_the_nearest_name(exported):
    with pytest.raises(PluginNotFound, match="no exporter plugin") as caught:
        check_directory(exported / "hf", "fastdploy")
    assert "fastdeploy" in caught.value.fix


def test_export_holds_the_rounded_weights(exported):
    plain, packed = (merge_shards([exported / d / "model.safetensors"]) for d in ("hf", "hf-fp8"))
    assert {name for name in packed if not name.endswith("_inv")} == set(plain)
    for name, (_, tensor) in packed.items():
        if tensor.dtype == "F8_E4M3":
            original = plain[name][1].load()
            found = decode_blocks(tensor.load(), packed[f"{name}_scale_inv"][1].load())
            assert np.linalg.norm(found - original) < 0.03 * np.linalg.norm(original)
        elif not name.endswith("_inv"):
            assert tensor.load().tobytes() == plain[name][1].load().tobytes()


def broken(exported, target, change):
    """A copy of the FP8 export with a changed config.json."""
    target.mkdir()
    for file in (exported / "hf-fp8").iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((target / "config.json").read_text())
    change(config)
    (target / "config.json").write_text(json.dumps(config))
    return check_directory(target)


BREAKS = {
    "one-dtype-key": lambda c: c.update(dtype="float32"),
    "rope": lambda c: c.pop("rope_theta"),
    "architecture": lambda c: c.update(architectures=["Ernie4_5ForCausalLM"]),
    "moe-keys": lambda c: c.pop("moe_k"),
    "no-remote-code": lambda c: c.update(auto_map={}),
    "head": lambda c: c.update(tie_word_embeddings=not c["tie_word_embeddings"]),
    "names": lambda c: c.update(num_hidden_layers=3),
    "fp8-config": lambda c: c["quantization_config"].update(weight_block_size=[64, 64]),
    "fp8-skipped": lambda c: c["quantization_config"]["modules_to_not_convert"].remove("model.layers.1.mlp.gate"),
}


@pytest.mark.parametrize("rule", BREAKS)
def test_a_broken_rule_is_named(exported, tmp_path, rule):
    assert [problem.rule for problem in broken(exported, tmp_path / "x", BREAKS[rule])][:1] == [rule]


def test_files_of_a_directory_are_asked_for(exported, tmp_path):
    broken(exported, tmp_path / "x", lambda c: None)
    (tmp_path / "x" / "generation_config.json").unlink()
    (problem,) = check_directory(tmp_path / "x")
    assert (problem.rule, problem.where) == ("files", "generation_config.json")


def test_every_rule_has_a_source():
    rules = (*HF_RULES, *SHARED, *PADDLE)
    assert all(rule.source and rule.text for rule in rules)
    assert len({rule.name for rule in rules}) == len(rules)


def test_the_command_lists_what_is_broken(exported, tmp_path, capsys):
    from erniecore.cli.app import main

    assert main(["model", "check", str(exported / "hf"), "--contract", "fastdeploy"]) == 0
    broken(exported, tmp_path / "x", BREAKS["rope"])
    capsys.readouterr()
    assert main(["model", "check", str(tmp_path / "x"), "--json"]) == 5
    (rule,) = json.loads(capsys.readouterr().out)["broken"]
    assert rule.pop("source").startswith("FastDeploy")
    expected = "the base at the top level"
    assert rule == {"rule": "rope", "where": "config.json: rope_theta", "found": "nothing", "expected": expected}
