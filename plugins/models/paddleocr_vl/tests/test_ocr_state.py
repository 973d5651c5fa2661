"""Sizes, both spellings of config.json, refused architectures, and both spellings of the names of weights."""

import copy
import json
import math
from importlib import resources

import numpy as np
import pytest
import yaml
from erniecore_paddleocr_vl.architecture import OcrArchitecture
from erniecore_paddleocr_vl.config import OcrConfig
from erniecore_paddleocr_vl.plugin import plugin
from erniecore_paddleocr_vl.state import OcrStateAdapter
from erniecore_planner.jobs import total_parameters

from erniecore.api import CheckpointError


def recipe(name):
    return yaml.safe_load((resources.files("erniecore_paddleocr_vl.recipes") / f"{name}.yaml").read_text())["model"]


def maps_of(name):
    architecture = plugin.ernie_read_architecture(config=OcrConfig(**recipe(name)))
    return plugin.ernie_state_adapter(architecture=architecture).maps("pt")


def billions(maps, part=""):
    return sum(math.prod(m.shape) for m in maps if part in m.name) / 1e9


def test_sizes_of_the_published_model():
    maps = maps_of("0.9b")
    found = [f"{billions(maps, part):.3f}" for part in ("vision_model.", "projector.", "")]
    assert found == ["0.413", "0.026", "0.906"]


@pytest.mark.parametrize("name", ["0.9b", "tiny"])
def test_the_plan_counts_every_parameter(name):
    shape = OcrArchitecture.parse(recipe(name)["architecture"]).shape()
    assert total_parameters(shape) + shape.beside == sum(math.prod(m.shape) for m in maps_of(name))


def test_a_text_token_passes_the_text_part_and_all_is_trained():
    for entry in maps_of("tiny"):
        assert entry.trained
        assert entry.active_share == (0 if entry.name.startswith(("vision_model.", "projector.")) else 1)


@pytest.fixture(scope="module")
def ocr(golden):
    return golden("paddleocr_vl")


@pytest.fixture
def hub(ocr):
    return json.loads((ocr.directory / "config.hub_style.json").read_text())


def test_both_spellings_say_the_same(ocr, hub):
    one, other = (OcrArchitecture.parse(source) for source in (ocr.config, hub))
    assert {k: v for k, v in vars(one).items() if k != "source"} == {
        k: v for k, v in vars(other).items() if k != "source"
    }


def test_what_is_kept_is_flat_with_unknown_keys_of_both_levels(ocr):
    nested = copy.deepcopy(ocr.config)
    nested["text_config"]["of_tomorrow"], nested["also"] = {"x": [1]}, 2
    kept = plugin.ernie_read_architecture(config=OcrConfig(architecture=nested))
    assert "text_config" not in kept
    assert (kept["model_type"], kept["of_tomorrow"], kept["also"]) == ("paddleocr_vl", {"x": [1]}, 2)
    assert kept["rope_scaling"] == {"mrope_section": [3, 4, 5], "rope_type": "default", "type": "default"}


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("model_type", "ernie4_5", "model_type"),
        ("rope_scaling", None, "rope_scaling"),
        ("rope_scaling", {"mrope_section": [3, 4, 6]}, "rope_scaling: mrope_section"),
        ("rope_scaling", {"mrope_section": [3, 4, 5], "rope_type": "yarn"}, "rope_scaling: rope_type"),
        ("use_3d_rope", False, "use_3d_rope"),
        ("vision_config", 3, "vision_config"),
        ("image_token_id", -1, "image_token_id"),
    ],
)
def test_an_impossible_value_is_refused_at_its_key(key, value, where, hub):
    with pytest.raises(CheckpointError) as caught:
        OcrArchitecture.parse({**hub, key: value}, "x/config.json")
    assert caught.value.where == f"x/config.json: {where}"


@pytest.mark.parametrize(("key", "value"), [("num_attention_heads", 3), ("hidden_act", "gelu"), ("image_size", 13)])
def test_an_impossible_tower_is_refused_at_its_key(key, value, hub):
    hub["vision_config"][key] = value
    with pytest.raises(CheckpointError) as caught:
        OcrArchitecture.parse(hub, "x/config.json")
    assert caught.value.where == f"x/config.json: vision_config: {key}"


def test_stored_weights_are_the_loaded_ones(ocr, build):
    state, stored = build(plugin, ocr.config, ocr.weights).state_dict(), {}
    for entry in OcrStateAdapter(OcrArchitecture.parse(ocr.config)).maps("pt"):
        arrays = entry.store(state[entry.name].numpy())
        assert [a.shape for a in arrays] == list(entry.source_shapes)
        stored.update(zip(entry.sources, arrays, strict=True))
    assert set(stored) == set(ocr.weights)
    for name, array in ocr.weights.items():
        np.testing.assert_array_equal(stored[name], array, err_msg=name)


def same_model(ocr, build, weights, layout="pt"):
    expected = build(plugin, ocr.config, ocr.weights).state_dict()
    found = build(plugin, ocr.config, weights, layout=layout).state_dict()
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name].numpy(), value.numpy(), err_msg=name)


def newer(name):
    for old, new in (
        ("visual.", "model.visual."),
        ("mlp_AR.", "model.projector."),
        ("model.", "model.language_model."),
    ):
        if name.startswith(old):
            return new + name[len(old) :]
    return name


def test_names_of_newer_libraries_fill_the_same_model(ocr, build):
    weights = {newer(name): array for name, array in ocr.weights.items()}
    assert {"model.language_model.norm.weight", "model.projector.linear_1.bias", "lm_head.weight"} <= set(weights)
    same_model(ocr, build, weights)


def test_weights_that_are_not_used_are_known(ocr, build):
    spare = {f"visual.vision_model.{name}": np.zeros(1) for name in ("head.probe", "packing_position_embedding.weight")}
    same_model(ocr, build, {**ocr.weights, **spare})


def test_the_fused_layout_fills_the_same_model(ocr, build):
    """As the text models' older files: matrices turned, some of the text part's side by side, another prefix."""
    out = {}
    groups = (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("up_gate_proj", ("gate_proj", "up_proj")))
    for name, array in ocr.weights.items():
        public = f"ernie.{name[6:]}" if name.startswith("model.") else name
        joined = [group for group in groups if name.startswith("model.") and f".{group[1][0]}." in name]
        for fused, members in joined:
            arrays = [ocr.weights[name.replace(members[0], member)].T for member in members]
            out[public.replace(members[0], fused)] = np.concatenate(arrays, axis=-1)
        part = name.startswith("model.") and any(f".{p}_proj." in name for p in ("q", "k", "v", "gate", "up"))
        if not part:
            table = any(word in name for word in ("embed_tokens", "position_embedding"))
            out[public] = array.T if array.ndim == 2 and not table else array
    same_model(ocr, build, out, "paddle")
