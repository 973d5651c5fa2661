"""One scale for what servers lay side by side as one matrix: q, k, v and gate, up; in training, in codes, in an export."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_fp8_qat.layers import rounded
from erniecore_fp8_qat.packed import PackedWeight
from erniecore_fp8_qat.plugin import qat, w8a8
from erniecore_fp8_qat.scales import InputScale

GROUPS = [
    ("model.layers.0.self_attn", ("q_proj", "k_proj", "v_proj")),
    ("model.layers.0.mlp", ("gate_proj", "up_proj")),
    ("model.layers.1.mlp.experts", ("gate_proj", "up_proj")),
    ("model.layers.1.mlp.shared_experts", ("gate_proj", "up_proj")),
]


def quantized(model, phase, **settings):
    return qat.ernie_quantize_model(config=qat.Config(**settings), model=model, phase=phase)


def scales(model, above, names):
    state = model.state_dict()
    return [state[f"{above}.{name}.weight_scale"].numpy() for name in names]


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g[0])
def test_the_largest_scale_holds_for_all(group, make_model):
    shared, own = (quantized(make_model("moe"), "export", fused_scales=on) for on in (True, False))
    largest = np.max(scales(own, *group), axis=0)
    assert len({scale.tobytes() for scale in scales(own, *group)}) > 1
    for scale in scales(shared, *group):
        np.testing.assert_array_equal(scale, largest)


def test_other_layers_keep_their_own_scale(make_model):
    shared, own = (quantized(make_model("moe"), "export", fused_scales=on) for on in (True, False))
    for name in ("model.layers.0.self_attn.o_proj", "model.layers.1.mlp.experts.down_proj"):
        np.testing.assert_array_equal(*(m.state_dict()[f"{name}.weight_scale"].numpy() for m in (shared, own)))


def test_training_rounds_as_the_codes_do(make_model):
    """Also after a step that makes another of the parts the largest."""
    model = quantized(make_model("moe"), "train")
    layers = dict(model.named_sublayers())
    weight = layers["model.layers.0.self_attn.k_proj"].weight
    weight.set_value(weight * 3)
    stacks = layers["model.layers.1.mlp.experts"].gate_proj
    stacks.set_value(stacks * paddle.linspace(0.1, 3, stacks.shape[0]).reshape([-1, 1, 1]))
    trained = {name: rounded(layer).numpy() for name, layer in layers.items() if isinstance(layer, InputScale)}
    packed = quantized(model, "export")
    found = {
        name: layer.dequantize().numpy() for name, layer in packed.named_sublayers() if isinstance(layer, PackedWeight)
    }
    assert len(found) == len(trained)
    for name, dequantized in trained.items():
        np.testing.assert_array_equal(found[name.replace("_fp8", "")], dequantized)


def test_inputs_of_a_group_have_one_scale(make_model):
    """They are the same inputs, so what training remembers of them is the same."""
    model = quantized(make_model("moe"), "train", scale_warmup=1)
    model.train()
    model.features(paddle.to_tensor(np.arange(5, 29).reshape(2, 12)))
    layers = dict(model.named_sublayers())
    scales = [layers[f"model.layers.0.self_attn.{n}"].step_scale().item() for n in ("q_proj", "k_proj", "v_proj")]
    assert scales[0] > 0
    assert len(set(scales)) == 1


def test_a_part_that_stays_as_it_is_leaves_the_others_alone(make_model):
    model = quantized(make_model("moe"), "export", ignore=("k_proj",))
    own = quantized(make_model("moe"), "export", ignore=("k_proj",), fused_scales=False)
    for name in ("q_proj", "v_proj"):
        np.testing.assert_array_equal(*(scales(m, "model.layers.0.self_attn", [name])[0] for m in (model, own)))


def test_integers_have_a_scale_per_output_and_share_none(make_model):
    model = w8a8.ernie_quantize_model(config=w8a8.Config(), model=make_model("moe"), phase="export")
    q, k = scales(model, "model.layers.0.self_attn", ["q_proj", "k_proj"])
    assert q.shape[0] != k.shape[0] or (q != k).any()
