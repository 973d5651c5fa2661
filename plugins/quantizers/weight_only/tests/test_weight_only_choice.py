"""Which layer is stored how: the documented routing, patterns, what is never packed, what the plan counts."""

import pytest
from erniecore_weight_only.packing import pack_model, packed_weights, shapes_of, stored_bytes
from erniecore_weight_only.plugin import nf4, wint4, wint4_8, wint8
from erniecore_weight_only.schemes import Scheme, choose, packed_bytes, places

from erniecore.api import ConfigError, UsageError

L = "model.layers.1."
SHAPES = {
    "model.embed_tokens.weight": (440, 32),
    "lm_head.weight": (32, 440),
    "model.norm.weight": (32,),
    f"{L}mlp.gate.weight": (32, 4),
    f"{L}mlp.moe_statics.e_score_correction_bias": (1, 4),
    **{f"{L}self_attn.{x}_proj.weight": (32, 32) for x in "qkvo"},
    **{f"{L}mlp.experts.{x}_proj": (4, 32, 16) for x in ("gate", "up")},
    f"{L}mlp.experts.down_proj": (4, 16, 32),
    **{f"{L}mlp.shared_experts.{x}_proj.weight": (32, 16) for x in ("gate", "up", "down")},
    **{f"model.layers.0.mlp.{x}_proj.weight": (32, 64) for x in ("gate", "up", "down")},
    "model.mtp_linear_proj.0.weight": (64, 32),
}


def quant_dtypes(plugin, **settings):
    config = plugin.Config(**settings)
    return {place.name: scheme.quant_dtype for place, scheme in choose(places(SHAPES), plugin.rules(config)).items()}


def test_the_mixture_of_erniekit():
    found = quant_dtypes(wint4_8)
    assert {n for n, quant_dtype in found.items() if quant_dtype == "int4"} == {
        f"{L}mlp.experts.{x}_proj" for x in ("gate", "up", "down")
    }
    dense = {f"model.layers.0.mlp.{x}_proj" for x in ("gate", "up", "down")}
    assert {n for n, quant_dtype in found.items() if quant_dtype == "int8"} == {
        f"{L}self_attn.{x}_proj" for x in "qkvo"
    } | dense


@pytest.mark.parametrize("plugin", [wint8, wint4, nf4], ids=lambda p: p.name)
def test_the_others_take_every_linear_layer_and_no_embedding_router_or_head(plugin):
    found = quant_dtypes(plugin)
    assert f"{L}mlp.shared_experts.up_proj" in found
    assert "model.mtp_linear_proj.0" in found
    assert not any("embed" in n or n.endswith((".gate", "lm_head", "norm", "bias")) for n in found)


def test_eight_bits_win_over_four_and_ignore_over_both():
    found = quant_dtypes(wint4_8, int8=("mlp.experts.down_proj",), ignore=("layers.1.self_attn.*", "experts.up_proj"))
    assert found == {f"{L}mlp.experts.gate_proj": "int4", f"{L}mlp.experts.down_proj": "int8"}


def test_words_of_the_command_line_are_patterns():
    assert set(quant_dtypes(wint8, layers="q_proj,k_proj")) == {f"{L}self_attn.q_proj", f"{L}self_attn.k_proj"}


def test_unknown_pattern_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError) as caught:
        quant_dtypes(wint4_8, int8=("qproj",))
    assert "quantizer.int8" in str(caught.value)
    assert "did you mean q_proj?" in str(caught.value)


def test_defaults_may_match_nothing_but_not_all_of_them():
    dense = {n: s for n, s in SHAPES.items() if "experts" not in n}
    assert packed_bytes(dense, wint4_8.rules(wint4_8.Config()))
    with pytest.raises(ConfigError, match="no layer"):
        packed_bytes({"model.norm.weight": (4,)}, wint8.rules(wint8.Config()))


def test_settings_of_a_resolved_file_are_defaults_still():
    config = wint4_8.Config(**wint4_8.Config().model_dump())
    assert packed_bytes({f"{L}self_attn.q_proj.weight": (8, 8)}, wint4_8.rules(config))


@pytest.mark.parametrize("plugin", [wint8, wint4, wint4_8, nf4], ids=lambda p: p.name)
def test_declared_bytes_are_those_in_memory(plugin, moe_model):
    config = plugin.Config()
    before, shapes = stored_bytes(moe_model), shapes_of(moe_model)
    declared = packed_bytes(shapes, plugin.rules(config))
    floats = sum(4 * len_of(shapes[name]) for name in declared)
    pack_model(moe_model, plugin.rules(config))
    assert stored_bytes(moe_model) == before - floats + sum(declared.values())
    assert set(packed_weights(moe_model)) == set(declared)
    assert shapes_of(moe_model) == shapes


def len_of(shape):
    total = 1
    for size in shape:
        total *= size
    return total


def test_another_quantizer_on_a_packed_model_is_refused(moe_model):
    pack_model(moe_model, wint8.rules(wint8.Config()))
    with pytest.raises(UsageError, match="in another way"):
        pack_model(moe_model, wint4.rules(wint4.Config()))


def test_matrices_that_are_no_linear_layers_are_refused_by_name(moe_model):
    import paddle

    moe_model.extra = paddle.nn.Layer()
    moe_model.extra.weight = moe_model.create_parameter([4, 4])
    with pytest.raises(ConfigError, match="extra is a Layer"):
        pack_model(moe_model, wint8.rules(wint8.Config()))
    assert not packed_weights(moe_model)
    pack_model(moe_model, wint8.rules(wint8.Config(ignore=("extra",))))


@pytest.mark.parametrize(("group", "bytes_per_weight"), [(0, 0.502), (128, 0.532), (64, 0.563)])
def test_four_bits_take_about_half_a_byte(group, bytes_per_weight):
    assert Scheme("int4", group).num_bytes((64, 2048, 1536)) / (64 * 2048 * 1536) <= bytes_per_weight
