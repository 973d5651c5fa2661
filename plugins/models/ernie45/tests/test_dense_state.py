"""Public names and layouts of the dense model's weights, its sizes, and its sharding rules."""

import math
from fnmatch import fnmatchcase
from importlib import resources

import numpy as np
import paddle  # noqa: TID253
import pytest
import yaml
from erniecore_ernie45.architecture import Architecture
from erniecore_ernie45.plugin import plugin
from erniecore_ernie45.state import Ernie45StateAdapter

from erniecore.api import CheckpointError

VARIANTS = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "biases": {"use_bias": True},
    "square projections": {"head_dim": 6, "num_key_value_heads": 4, "intermediate_size": 24},
}


def paddle_layout(config, weights):
    """The same weights as the older files of the family hold them: fused, turned, under another prefix."""
    rest, out = dict(weights), {}
    for index in range(config["num_hidden_layers"]):
        for block, parts, fused in (("self_attn", "qkv", "qkv_proj"), ("mlp", ("gate", "up"), "up_gate_proj")):
            for kind in ("weight", "bias") if config["use_bias"] else ("weight",):
                arrays = [rest.pop(f"model.layers.{index}.{block}.{part}_proj.{kind}") for part in parts]
                out[f"ernie.layers.{index}.{block}.{fused}.{kind}"] = np.concatenate([a.T for a in arrays], axis=-1)
    for name, array in rest.items():
        turned = array.T if name.endswith("_proj.weight") or name == "lm_head.weight" else array
        out[name.replace("model.", "ernie.", 1)] = turned
    return out


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_both_layouts_fill_the_same_model(changes, build, reference):
    config = reference.config(**changes)
    weights = reference.random_weights(config)
    expected = build(plugin, config, weights).state_dict()
    found = build(plugin, config, paddle_layout(config, weights), layout="paddle").state_dict()
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name].numpy(), value.numpy(), err_msg=name)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_stored_weights_are_the_loaded_ones(changes, build, reference):
    config = reference.config(**changes)
    weights = reference.random_weights(config)
    state = build(plugin, config, weights).state_dict()
    stored = {}
    for entry in Ernie45StateAdapter(Architecture.parse(config)).maps("pt"):
        arrays = entry.store(state[entry.name].numpy())
        assert [a.shape for a in arrays] == list(entry.source_shapes)
        stored.update(zip(entry.sources, arrays, strict=True))
    assert set(stored) == set(weights)
    for name, array in weights.items():
        np.testing.assert_array_equal(stored[name], array, err_msg=name)


def test_a_tied_head_that_is_stored_too_must_be_the_embedding(build, reference):
    config = reference.config()
    weights = reference.random_weights(config)
    build(plugin, config, {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]})
    with pytest.raises(CheckpointError, match="differs from the embedding"):
        build(plugin, config, {**weights, "lm_head.weight": weights["model.embed_tokens.weight"] + 1})


def test_an_untied_model_without_a_head_is_refused(build, reference):
    weights = reference.random_weights(reference.config())
    with pytest.raises(CheckpointError, match="head is missing"):
        build(plugin, reference.config(tie_word_embeddings=False), weights)


def test_files_of_another_family_are_refused(reference):
    adapter = Ernie45StateAdapter(Architecture.parse(reference.config()))
    with pytest.raises(CheckpointError, match="transformer"):
        adapter.layout_of(["transformer.wte"])


def test_prediction_layers_of_a_file_are_left_alone(reference):
    adapter = Ernie45StateAdapter(Architecture.parse(reference.config()))
    assert adapter.ignored("model.mtp_block.0.input_layernorm.weight")
    assert not adapter.ignored("model.norm.weight")


def test_size_of_the_published_model():
    text = (resources.files("erniecore_ernie45.recipes") / "0.3b.yaml").read_text()
    adapter = Ernie45StateAdapter(Architecture.parse(yaml.safe_load(text)["model"]["architecture"]))
    assert round(sum(math.prod(entry.shape) for entry in adapter.maps("pt")) / 1e9, 4) == 0.3607


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_every_parameter_has_a_sharding_rule(changes, build, reference):
    styles = {"embed_tokens": "vocab", "lm_head": "vocab", "q_proj": "column", "up_proj": "column", "down_proj": "row"}
    for name, _ in build(plugin, reference.config(**changes)).named_parameters():
        style = next(
            (style for pattern, style in plugin.ernie_model_layout().rules if fnmatchcase(name, pattern)), None
        )
        assert style, name
        for part, expected in styles.items():
            if f"{part}.weight" in name:
                assert style == expected, name


def test_new_weights_depend_on_the_seed_and_have_the_asked_spread(build, reference):
    config = reference.config(hidden_size=64, initializer_range=0.05)
    model = build(plugin, config)
    assert float(model.model.layers[0].mlp.up_proj.weight.std()) == pytest.approx(0.05, rel=0.1)
    assert float(model.model.embed_tokens.weight.std()) == pytest.approx(0.05, rel=0.1)
    assert model.model.norm.weight.numpy().tolist() == [1.0] * 64
    again = build(plugin, config)
    np.testing.assert_array_equal(model.model.embed_tokens.weight.numpy(), again.model.embed_tokens.weight.numpy())


def test_parameters_have_the_asked_dtype_and_the_default_stays(build, reference):
    model = build(plugin, reference.config(use_bias=True), dtype="bfloat16")
    assert {str(parameter.dtype) for parameter in model.parameters()} == {"paddle.bfloat16"}
    assert paddle.get_default_dtype() == "float32"
