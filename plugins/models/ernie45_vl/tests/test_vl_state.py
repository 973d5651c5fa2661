"""Public names and layouts of the vision-language weights."""

import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45_vl.architecture import VlArchitecture
from erniecore_ernie45_vl.plugin import plugin
from erniecore_ernie45_vl.state import Ernie45VlStateAdapter


@pytest.fixture(scope="module")
def vl(golden):
    return golden("vl_moe")


def test_stored_weights_are_the_loaded_ones(vl, build):
    state, stored = build(plugin, vl.config, vl.weights).state_dict(), {}
    for entry in Ernie45VlStateAdapter(VlArchitecture.parse(vl.config)).maps("pt"):
        arrays = entry.store(state[entry.name].numpy())
        assert [a.shape for a in arrays] == list(entry.source_shapes)
        stored.update(zip(entry.sources, arrays, strict=True))
    assert set(stored) == set(vl.weights)
    for name, array in vl.weights.items():
        np.testing.assert_array_equal(stored[name], array, err_msg=name)


VARIANTS = {
    "untied, biases": {"tie_word_embeddings": False, "use_bias": True},
    "no shared experts": {"moe_num_shared_experts": 0},
    "every other layer, from the first": {"moe_layer_interval": 2, "moe_layer_start_index": [0, 1]},
    "no pairs for time, wide heads": {"freq_allocation": 0, "head_dim": 40},
    "two sizes alike": {"moe_intermediate_size": [24, 24], "moe_num_experts": [24, 24]},
    "squares of four": {"spatial_conv_size": 4, "tower": {"spatial_merge_size": 4, "num_heads": 3, "patch_size": 7}},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_other_architectures_see_images_and_keep_their_weights(changes, vl, build):
    hub = json.loads((vl.directory / "config.hub_style.json").read_text())
    tower = changes.get("tower", {})
    config = {**hub, **changes, "vision_config": {**hub["vision_config"], **tower}}
    model, stored = build(plugin, config), {}
    for entry in model_maps(model):
        arrays = entry.store(model.state_dict()[entry.name].numpy())
        stored.update(zip(entry.sources, arrays, strict=True))
    model.eval()
    other = build(plugin, config, stored)
    other.eval()
    side = tower.get("spatial_merge_size", 2)
    ids = paddle.to_tensor([[5, 500, *[504] * 6, 501, 9]])
    values = 3 * tower.get("patch_size", 14) ** 2
    pixels = paddle.randn([6 * side * side, values])
    seen = {"pixel_values": pixels, "image_grid_thw": paddle.to_tensor([[1, 2 * side, 3 * side]])}
    logits = model(ids, **seen).numpy()
    assert np.isfinite(logits).all()
    np.testing.assert_array_equal(other(ids, **seen).numpy(), logits)
    assert (model(ids, **{**seen, "pixel_values": pixels + 1}).numpy() != logits)[:, 2:].any()


def same_model(vl, build, weights, layout="pt"):
    expected = build(plugin, vl.config, vl.weights).state_dict()
    found = build(plugin, vl.config, weights, layout=layout).state_dict()
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name].numpy(), value.numpy(), err_msg=name)


def test_the_tower_may_be_below_the_model(vl, build):
    moved = {name.replace("vision_model.", "model.vision_model."): array for name, array in vl.weights.items()}
    assert moved.keys() != vl.weights.keys()
    same_model(vl, build, moved)


def paddle_layout(weights):
    """The same weights fused, turned and under the prefix of the older files; routers are [hidden, experts] in both."""
    out = {}
    groups = (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("up_gate_proj", ("gate_proj", "up_proj")))
    for name, array in weights.items():
        public = f"ernie.{name[6:]}" if name.startswith("model.") else name
        for fused, members in groups:
            if f".{members[0]}." in name:
                arrays = [weights[name.replace(members[0], member)].T for member in members]
                out[public.replace(members[0], fused)] = np.concatenate(arrays, axis=-1)
        if not any(f".{part}_proj." in name for part in ("q", "k", "v", "gate", "up")):
            turned = array.ndim == 2 and not any(part in name for part in ("embed_tokens", ".gate.", "moe_statics"))
            out[public] = array.T if turned else array
    return out


def test_both_layouts_fill_the_same_model(vl, build):
    same_model(vl, build, paddle_layout(vl.weights), "paddle")


def test_routers_stay_float32_in_a_bfloat16_model(vl, build):
    model = build(plugin, vl.config, dtype="bfloat16")
    wide = {name for name, parameter in model.named_parameters() if "float32" in str(parameter.dtype)}
    assert wide == {e.name for e in model_maps(model) if e.dtype == "float32"}
    assert len(wide) == 3 * 3


def model_maps(model):
    return plugin.ernie_state_adapter(architecture=model.architecture).maps("pt")


def test_new_models_have_their_vision_part_frozen(vl, build):
    model = build(plugin, vl.config)
    frozen = {name for name, parameter in model.named_parameters() if parameter.stop_gradient}
    assert frozen == {entry.name for entry in model_maps(model) if not entry.trained}
