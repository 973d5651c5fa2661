"""Public names and layouts of the mixture-of-experts weights, sizes, sharding rules, and refused architectures."""

import math
from fnmatch import fnmatchcase
from importlib import resources

import numpy as np
import paddle  # noqa: TID253
import pytest
import yaml
from erniecore_ernie45_moe.architecture import MoeArchitecture
from erniecore_ernie45_moe.config import MoeConfig
from erniecore_ernie45_moe.plugin import plugin
from erniecore_ernie45_moe.state import Ernie45MoeStateAdapter
from pydantic import ValidationError

from erniecore.api import CheckpointError

VARIANTS = {
    "shared experts": {"moe_num_shared_experts": 2},
    "no shared experts": {"moe_num_shared_experts": 0},
    "untied, biases": {"tie_word_embeddings": False, "use_bias": True},
    "square experts": {"moe_intermediate_size": 24, "moe_num_experts": 24},
}


def paddle_layout(config, weights):
    """The same weights fused, turned and under the prefix of the older files."""
    out = {}
    groups = (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("up_gate_proj", ("gate_proj", "up_proj")))
    for name, array in weights.items():
        public = name.replace("model.", "ernie.", 1)
        for fused, members in groups:
            part = members[0]
            if f".{part}." in name:
                arrays = [weights[name.replace(part, member)].T for member in members]
                out[public.replace(part, fused)] = np.concatenate(arrays, axis=-1)
        if not any(f".{part}_proj." in name for part in ("q", "k", "v", "gate", "up")):
            matrix = name.endswith(("_proj.weight", ".gate.weight")) or name == "lm_head.weight"
            out[public] = array.T if matrix else array
    return out


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_both_layouts_fill_the_same_model(changes, build, reference):
    config = reference.moe_config(**changes)
    weights = reference.random_weights(config)
    expected = build(plugin, config, weights).state_dict()
    found = build(plugin, config, paddle_layout(config, weights), layout="paddle").state_dict()
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name].numpy(), value.numpy(), err_msg=name)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_stored_weights_are_the_loaded_ones(changes, build, reference):
    config = reference.moe_config(**changes)
    weights = reference.random_weights(config)
    state, stored = build(plugin, config, weights).state_dict(), {}
    for entry in Ernie45MoeStateAdapter(MoeArchitecture.parse(config)).maps("pt"):
        arrays = entry.store(state[entry.name].numpy())
        assert [a.shape for a in arrays] == list(entry.source_shapes)
        stored.update(zip(entry.sources, arrays, strict=True))
    assert set(stored) == set(weights)
    for name, array in weights.items():
        np.testing.assert_array_equal(stored[name], array, err_msg=name)


def test_a_checkpoint_with_prediction_layers_round_trips(golden, build):
    mtp = golden("moe_mtp")
    model = build(plugin, mtp.config, mtp.weights, mtp=True)
    stored = {}
    for entry in plugin.ernie_state_adapter(architecture=model.architecture).maps("pt"):
        arrays = entry.store(model.state_dict()[entry.name].numpy())
        assert [a.shape for a in arrays] == list(entry.source_shapes)
        stored.update(zip(entry.sources, arrays, strict=True))
    assert set(stored) == set(mtp.weights)
    for name, array in mtp.weights.items():
        np.testing.assert_array_equal(stored[name], array, err_msg=name)


def recipe(name):
    text = (resources.files("erniecore_ernie45_moe.recipes") / f"{name}.yaml").read_text()
    return yaml.safe_load(text)["model"]


def maps_of(name, mtp=False):
    config = MoeConfig(**recipe(name), mtp=mtp)
    return plugin.ernie_state_adapter(architecture=plugin.ernie_read_architecture(config=config)).maps("pt")


def billions(name, mtp):
    return sum(math.prod(entry.shape) for entry in maps_of(name, mtp)) / 1e9


@pytest.mark.parametrize(
    ("name", "without", "mtp"),
    [("21b-a3b", 21.825, 0.123), ("21b-a3b-thinking", 21.825, 0.123), ("300b-a47b", 299.484, 0.990)],
)
def test_sizes_of_the_published_models(name, without, mtp):
    assert round(billions(name, False), 3) == without
    assert round(billions(name, True) - billions(name, False), 3) == mtp


@pytest.mark.parametrize(("name", "active"), [("21b-a3b", 3_352_150_208), ("300b-a47b", 47_926_586_560)])
def test_active_parameters_of_the_published_models(name, active):
    """What the names of the models promise: A3B, A47B."""
    assert sum(math.prod(entry.shape) * entry.active_share for entry in maps_of(name)) == active


def test_only_the_selection_bias_is_not_trained(reference):
    adapter = plugin.ernie_state_adapter(architecture=reference.moe_config())
    fixed = {entry.name.split(".", 3)[-1] for entry in adapter.maps("pt") if not entry.trained}
    assert fixed == {"mlp.moe_statics.e_score_correction_bias"}


def test_the_thinking_recipe_brings_its_template():
    assert recipe("21b-a3b-thinking")["template"] == "thinking"


@pytest.mark.parametrize("mtp", [False, True])
def test_the_tiny_recipe_builds(mtp, build):
    section = recipe("tiny")
    model = build(plugin, section["architecture"], mtp=mtp)
    model.eval()
    assert model(paddle.to_tensor([[1, 2, 3]])).shape == [1, 3, section["architecture"]["vocab_size"]]


def test_every_parameter_has_a_sharding_rule(golden, build, reference):
    models = [build(plugin, golden("moe_mtp").config, mtp=True)]
    models.append(build(plugin, reference.moe_config(use_bias=True, tie_word_embeddings=False)))
    expected = {".experts.": "expert", "shared_experts.down_proj.weight": "row", "mlp.gate.weight": "replicate"}
    for name in (name for model in models for name, _ in model.named_parameters()):
        style = next(
            (style for pattern, style in plugin.ernie_model_layout().rules if fnmatchcase(name, pattern)), None
        )
        assert style, name
        for part, wanted in expected.items():
            if part in name:
                assert style == wanted, name


def test_router_weights_stay_float32_in_a_bfloat16_model(build, reference):
    model = build(plugin, reference.moe_config(), dtype="bfloat16")
    wide = {name for name, parameter in model.named_parameters() if "float32" in str(parameter.dtype)}
    maps = plugin.ernie_state_adapter(architecture=model.architecture).maps("pt")
    assert wide == {entry.name for entry in maps if entry.dtype == "float32"}
    assert len(wide) == 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "ernie4_5"),
        ("moe_k", 6),
        ("moe_num_experts", [4, 4]),
        ("moe_gate", "sinkhorn"),
        ("moe_group_experts", True),
        ("moe_norm_gate_logits", False),
        ("scoring_func", "tanh"),
        ("moe_num_shared_experts", -1),
        ("moe_layer_interval", 0),
    ],
)
def test_an_impossible_value_is_refused_at_its_key(key, value, reference):
    with pytest.raises(CheckpointError) as caught:
        MoeArchitecture.parse(reference.moe_config(**{key: value}), "x/config.json")
    assert caught.value.where == f"x/config.json: {key}"


def test_the_public_capacity_key_changes_nothing(reference):
    source = reference.moe_config(moe_capacity=[64, 64, 64])
    assert MoeArchitecture.parse(source).source["moe_capacity"] == [64, 64, 64]


@pytest.mark.parametrize("capacity", [(1.0,), (1.0, 2.0, 0.0)])
def test_capacity_is_three_positive_factors(capacity):
    with pytest.raises(ValidationError, match="three positive"):
        MoeConfig(capacity=capacity)
