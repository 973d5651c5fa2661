"""Sizes of the published models, both spellings of config.json, refused architectures, and what the plan is told."""

import copy
import json
import math
from importlib import resources

import pytest
import yaml
from erniecore_ernie45_vl.architecture import VlArchitecture
from erniecore_ernie45_vl.config import VlConfig
from erniecore_ernie45_vl.plugin import plugin
from erniecore_planner.jobs import idle_parameters, total_parameters
from pydantic import ValidationError

from erniecore.api import CheckpointError


def recipe(name):
    return yaml.safe_load((resources.files("erniecore_ernie45_vl.recipes") / f"{name}.yaml").read_text())["model"]


def maps_of(name):
    architecture = plugin.ernie_read_architecture(config=VlConfig(**recipe(name)))
    return plugin.ernie_state_adapter(architecture=architecture).maps("pt")


def billions(maps, *parts):
    found = [m for m in maps if not parts or any(part in m.name for part in parts)]
    return sum(math.prod(m.shape) for m in found) / 1e9


@pytest.mark.parametrize(
    ("name", "total", "decoder", "tower", "resampler"),
    [
        ("28b-a3b", "29.40", "28.62", "0.630", "0.144"),
        ("28b-a3b-thinking", "29.40", "28.62", "0.630", "0.144"),
        ("424b-a47b", "423.53", "422.72", "0.630", "0.173"),
    ],
)
def test_sizes_of_the_published_models(name, total, decoder, tower, resampler):
    maps = maps_of(name)
    found = billions(maps, "vision_model."), billions(maps, "resampler_model.")
    assert f"{billions(maps):.2f}" == total
    assert f"{billions(maps) - sum(found):.2f}" == decoder
    assert [f"{size:.3f}" for size in found] == [tower, resampler]


@pytest.mark.parametrize("name", ["28b-a3b", "424b-a47b", "tiny"])
def test_the_plan_counts_every_parameter(name):
    shape = VlArchitecture.parse(recipe(name)["architecture"]).shape()
    frozen = sum(idle_parameters(shape.hidden, layer) for layer in shape.layers)
    assert total_parameters(shape) + frozen + shape.beside == round(billions(maps_of(name)) * 1e9)


def test_what_only_images_pass_is_neither_trained_nor_active():
    parts = ("vision_model.", "resampler_model.", "vision_experts.", "gate.weight_1")
    for entry in maps_of("tiny"):
        if any(part in entry.name for part in parts):
            assert (entry.trained, entry.active_share) == (False, 0)
        elif "e_score_correction_bias" not in entry.name:
            assert entry.trained
            assert entry.active_share > 0


@pytest.fixture
def nested(golden):
    return copy.deepcopy(golden("vl_moe").config)


@pytest.fixture
def hub(golden):
    return json.loads((golden("vl_moe").directory / "config.hub_style.json").read_text())


def refused(source):
    with pytest.raises(CheckpointError) as caught:
        VlArchitecture.parse(source, "x/config.json")
    return caught.value


def test_both_spellings_say_the_same(nested, hub):
    one, other = VlArchitecture.parse(nested), VlArchitecture.parse(hub)
    assert {k: v for k, v in vars(one).items() if k != "source"} == {
        k: v for k, v in vars(other).items() if k != "source"
    }


def test_what_is_kept_is_flat_with_unknown_keys_of_both_levels(nested):
    nested["text_config"]["of_tomorrow"], nested["also"] = {"x": [1]}, 2
    kept = plugin.ernie_read_architecture(config=VlConfig(architecture=nested))
    assert "text_config" not in kept
    assert (kept["model_type"], kept["of_tomorrow"], kept["also"]) == ("ernie4_5_moe_vl", {"x": [1]}, 2)
    assert VlArchitecture.parse(kept).num_experts == 6


@pytest.mark.parametrize(
    ("kinds", "placed"),
    [("dsdd", [1]), ("dsds", [1, 3]), ("ssss", [0, 1, 2, 3]), ("ddds", [3])],
)
def test_layers_that_are_listed_one_by_one(kinds, placed, nested):
    nested["text_config"]["mlp_layer_types"] = [{"d": "dense", "s": "sparse"}[kind] for kind in kinds]
    arch = VlArchitecture.parse(nested)
    assert [index for index in range(4) if arch.is_moe(index)] == placed


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("mlp_layer_types", ["sparse", "dense", "dense", "sparse"], "text_config: mlp_layer_types"),
        ("mlp_layer_types", ["dense"] * 4, "text_config: mlp_layer_types"),
        ("mlp_layer_types", ["sparse"] * 3, "text_config: mlp_layer_types"),
        ("tie_word_embeddings", False, "text_config: tie_word_embeddings"),
        (
            "rope_parameters",
            {"rope_theta": 5e5, "mrope_section": [8, 4, 4]},
            "text_config: rope_parameters: mrope_section",
        ),
    ],
)
def test_an_impossible_value_of_the_nested_spelling(key, value, where, nested):
    nested["text_config"][key] = value
    assert refused(nested).where == f"x/config.json: {where}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "ernie4_5_moe"),
        ("moe_num_experts", [6, 4]),
        ("moe_num_experts", 6),
        ("moe_intermediate_size", [24, 0]),
        ("moe_intermediate_size", [24]),
        ("freq_allocation", 3),
        ("freq_allocation", 17),
        ("rope_3d", False),
        ("temporal_conv_size", 4),
        ("spatial_conv_size", 3),
        ("pixel_hidden_size", 25),
        ("moe_use_hard_gate", False),
        ("vision_config", None),
        ("im_patch_id", -1),
        ("moe_k", 7),
    ],
)
def test_an_impossible_value_is_refused_at_its_key(key, value, hub):
    assert refused({**hub, key: value}).where == f"x/config.json: {key}"


@pytest.mark.parametrize(
    ("key", "value"), [("num_heads", 5), ("hidden_act", "gelu"), ("depth", 0), ("hidden_size", 25)]
)
def test_an_impossible_tower_is_refused_at_its_key(key, value, hub):
    hub["vision_config"][key] = value
    assert refused(hub).where == f"x/config.json: vision_config: {key}"


def test_a_misspelt_key_gets_the_nearest(hub):
    hub["freq_alocation"] = hub.pop("freq_allocation")
    assert "freq_alocation" in refused(hub).fix


def test_shared_experts_may_be_left_out(hub):
    assert VlArchitecture.parse({**hub, "moe_num_shared_experts": None}).num_shared_experts == 0


def test_prediction_layers_are_left_alone(hub):
    kept = plugin.ernie_read_architecture(config=VlConfig(architecture={**hub, "num_nextn_predict_layers": 1}))
    assert kept["num_nextn_predict_layers"] == 0
    assert plugin.ernie_state_adapter(architecture=kept).ignored("model.mtp_block.0.input_layernorm.weight")
    with pytest.raises(ValidationError, match="mtp"):
        VlConfig(mtp=True)
