"""Adapter directories: round trips, ERNIEKit's layout, and everything that is refused."""

import json

import numpy as np
import pytest
from erniecore_lora import peft, plugin
from erniecore_lora.saved import describe, open_saved
from erniecore_lora.sizes import Size
from erniecore_lora.targets import of_shapes

from erniecore.api import CheckpointError
from erniecore.api.tensors import read_tensors, write_tensors

SHAPES = {
    "model.layers.0.self_attn.q_proj.weight": (6, 8),
    "model.layers.0.self_attn.k_proj.weight": (6, 4),
    "model.layers.0.self_attn.v_proj.weight": (6, 4),
    "model.layers.0.mlp.experts.gate_proj": (3, 6, 5),
    "model.layers.0.mlp.experts.up_proj": (3, 6, 5),
    "model.layers.0.mlp.experts.down_proj": (3, 5, 6),
}
KNOWN = of_shapes(SHAPES)
RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def write(directory, tensors, **changes):
    directory.mkdir(exist_ok=True)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **changes}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    write_tensors(directory / "adapter_model.safetensors", tensors)
    return directory


def pair(module, num_in=6, num_out=8, rank=2):
    return {
        f"base_model.model.{module}.lora_A.weight": floats(rank, num_in),
        f"base_model.model.{module}.lora_B.weight": floats(num_out, rank),
    }


Q = "model.layers.0.self_attn.q_proj"


def test_sizes_follow_patterns(tmp_path):
    tensors = {**pair(Q), **pair(Q.replace("q_", "k_"), num_out=4, rank=3)}
    saved = open_saved(write(tmp_path / "a", tensors, alpha_pattern={"0.self_attn.k_proj": 9}, use_rslora=True))
    sizes = {target.name: size for target, size in saved.sizes(KNOWN).items()}
    assert sizes == {Q: Size(2, 4.0, True), Q.replace("q_", "k_"): Size(3, 9.0, True)}
    assert sizes[Q].scale == pytest.approx(4 / 2**0.5)


def test_experts_are_stacked(tmp_path):
    names = [f"model.layers.0.mlp.experts.{e}.down_proj" for e in range(3)]
    saved = open_saved(write(tmp_path / "a", {k: v for n in names for k, v in pair(n, 5, 6).items()}))
    [target] = saved.sizes(KNOWN)
    found = saved.factors(target, saved.separate(KNOWN))
    assert (found.a.shape, found.b.shape) == ((3, 5, 2), (3, 2, 6))


REFUSED = {
    "bias": (pair(Q), {"bias": "all"}, "bias"),
    "whole modules": (pair(Q), {"modules_to_save": ["lm_head"]}, "modules_to_save"),
    "residual base": (pair(Q), {"init_lora_weights": "pissa"}, "init_lora_weights"),
    "unknown tensor": ({**pair(Q), "base_model.model.lm_head.weight": floats(3, 3)}, {}, "lm_head.weight"),
    "no B": (dict([next(iter(pair(Q).items()))]), {}, "has no B"),
    "other rank": ({**pair(Q), f"base_model.model.{Q}.lora_B.weight": floats(8, 3)}, {}, "do not fit each other"),
    "alpha": (pair(Q), {"lora_alpha": "many"}, "lora_alpha"),
    "nothing": ({}, {}, "changes nothing"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused_when_opened(tmp_path, case):
    tensors, changes, text = case
    with pytest.raises(CheckpointError, match=text):
        open_saved(write(tmp_path / "a", tensors, **changes))


UNFIT = {
    "another model's": (pair("model.layers.9.self_attn.q_proj"), "did you mean"),
    "another width": (pair(Q, num_out=7), "does not fit 6 and 8"),
    "one expert": (pair("model.layers.0.mlp.experts.1.down_proj", 5, 6), "an expert of this layer has no update"),
    "magnitudes": ({**pair(Q), f"base_model.model.{Q}.lora_magnitude_vector": floats(8)}, "use_dora"),
}


@pytest.mark.parametrize("case", UNFIT.values(), ids=UNFIT)
def test_refused_for_a_model(tmp_path, case):
    tensors, text = case
    with pytest.raises(CheckpointError, match=text):
        open_saved(write(tmp_path / "a", tensors)).sizes(KNOWN)


def test_each_directory_is_one_plugins(tmp_path):
    plugins = (plugin.lora, plugin.rslora, plugin.lora_plus, plugin.dora)
    for number, (changes, name) in enumerate(
        [({}, "lora"), ({"use_rslora": True}, "rslora"), ({"use_dora": True}, "dora")]
    ):
        directory = write(tmp_path / str(number), pair(Q), **changes)
        assert [p.name for p in plugins if p.ernie_match_adapter(directory=directory)] == [name]
    other = write(tmp_path / "ia3", pair(Q), peft_type="IA3")
    assert not any(p.ernie_match_adapter(directory=other) for p in plugins)
    assert describe(tmp_path) is None
    with pytest.raises(CheckpointError, match="holds no low-rank adapter"):
        open_saved(tmp_path)


# ------------------------------------------------------------------------------------------------- ERNIEKit


def erniekit(directory, tensors, **changes):
    directory.mkdir(exist_ok=True)
    (directory / "lora_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 4, **changes}))
    write_tensors(directory / "peft_model-00001-of-00001.safetensors", tensors)
    return directory


FUSED = "ernie.layers.0.self_attn.qkv_proj"


def test_erniekit_fused_layers_are_taken_apart(tmp_path):
    a, b = floats(6, 2), floats(2, 16)
    saved = open_saved(erniekit(tmp_path / "a", {f"{FUSED}.lora_A": a, f"{FUSED}.lora_B": b}, rslora=True))
    assert saved.description.kind() == "rslora"
    modules = saved.separate(KNOWN)
    assert [target.name[-6:] for target in saved.sizes(KNOWN)] == ["q_proj", "k_proj", "v_proj"]
    for name, part in zip("qkv", np.split(b, [8, 12], axis=1), strict=True):
        found = modules[f"model.layers.0.self_attn.{name}_proj"]
        assert np.array_equal(found.a, a)
        assert np.array_equal(found.b, part)


def test_erniekit_experts_and_index(tmp_path):
    tensors = {}
    for expert in range(3):
        name = f"ernie.layers.0.mlp.experts.{expert}.up_gate_proj"
        tensors |= {f"{name}.lora_A": floats(6, 2), f"{name}.lora_B": floats(2, 10)}
    directory = erniekit(tmp_path / "a", tensors)
    assert [t.parameter for t in open_saved(directory).sizes(KNOWN)] == ["gate_proj", "up_proj"]
    index = {"weight_map": dict.fromkeys(tensors, "peft_model-00002-of-00002.safetensors")}
    (directory / "peft_model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="weights are missing"):
        open_saved(directory)


def test_erniekit_of_another_width(tmp_path):
    saved = open_saved(erniekit(tmp_path / "a", {f"{FUSED}.lora_A": floats(6, 2), f"{FUSED}.lora_B": floats(2, 15)}))
    with pytest.raises(CheckpointError, match="another width"):
        saved.sizes(KNOWN)


def test_files_hold_what_was_written(tmp_path):
    tensors = pair(Q)
    write(tmp_path / "a", tensors)
    again = read_tensors(tmp_path / "a" / peft.WEIGHTS)
    assert all(np.array_equal(again[name], array) for name, array in tensors.items())


@pytest.mark.parametrize(
    ("pattern", "said"), [(r"(\w|[a-z]|\.)+[!?]", "takes too long"), ("(", "is no regular expression"), ("[a", "is no")]
)
def test_patterns_of_the_file_are_limited(tmp_path, monkeypatch, pattern, said):
    monkeypatch.setattr("erniecore_lora.saved.SECONDS", 0.5)
    with pytest.raises(CheckpointError, match=said) as caught:
        open_saved(write(tmp_path / "a", pair(Q), alpha_pattern={pattern: 9})).sizes(KNOWN)
    assert "adapter_config.json" in str(caught.value)
    assert caught.value.code == "ERN-K021"
