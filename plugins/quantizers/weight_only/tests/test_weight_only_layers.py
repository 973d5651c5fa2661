"""What packed layers compute, forward and backward, in one piece and in parts; stacked experts; what is kept."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_weight_only.layers import PackedExperts, PackedLinear, PackedWeight
from erniecore_weight_only.packing import pack_model, packed_weights
from erniecore_weight_only.plugin import nf4, wint4, wint4_8, wint8
from erniecore_weight_only.schemes import STACKED, Scheme

from erniecore.api import ops
from erniecore.api.quantizer import PackedLayer

SCHEMES = [Scheme("int8"), Scheme("int4"), Scheme("int4", 8), Scheme("nf4", 5)]
IDS = np.random.default_rng(0).integers(5, 440, (2, 19))


def linear(inputs=13, outputs=7, bias=None):
    paddle.seed(1)
    layer = paddle.nn.Linear(inputs, outputs, bias_attr=bias)
    if layer.bias is not None:
        layer.bias.set_value(paddle.randn([outputs]))
    return layer


def gradient(function, x):
    x = paddle.to_tensor(x, stop_gradient=False)
    y = function(x)
    (y * paddle.cos(paddle.arange(y.numel()).astype("float32")).reshape(y.shape)).sum().backward()
    return y.numpy(), x.grad.numpy()


class Experts(paddle.nn.Layer):
    """Stacked experts as models have them."""

    def __init__(self, experts=5, hidden=12, width=7):
        super().__init__()
        paddle.seed(2)
        shapes = ([experts, hidden, width], [experts, hidden, width], [experts, width, hidden])
        for name, shape in zip(STACKED, shapes, strict=True):
            self.add_parameter(name, self.create_parameter(shape))


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("chunk", [1, 40, 1 << 24])
def test_product_and_input_gradient_are_those_of_the_numbers(scheme, chunk, monkeypatch):
    monkeypatch.setattr("erniecore_ops.packed_weights.CHUNK", chunk)
    base = linear()
    packed = PackedLinear(base, scheme, "layer")
    dequantized = packed.dequantized("weight")
    assert not np.array_equal(dequantized.numpy(), base.weight.numpy())
    x = np.random.default_rng(3).standard_normal((2, 3, 13)).astype(np.float32)
    found = gradient(packed, x)
    expected = gradient(lambda x: paddle.nn.functional.linear(x, dequantized, base.bias), x)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("chunk", [1, 200, 1 << 24])
def test_experts_compute_with_their_numbers(scheme, chunk, monkeypatch):
    monkeypatch.setattr("erniecore_ops.packed_weights.CHUNK", chunk)
    rng = np.random.default_rng(4)
    packed = PackedExperts(Experts(), dict.fromkeys(STACKED, scheme), "experts")
    gate, up, down = (packed.dequantized(name) for name in STACKED)
    x = rng.standard_normal((9, 12)).astype(np.float32)
    chosen = paddle.to_tensor(rng.choice([-1, 0, 2, 4], (9, 2)))  # experts 1 and 3 have no tokens
    weights = paddle.to_tensor(rng.random((9, 2)).astype(np.float32))
    found = gradient(lambda x: packed(x, chosen, weights), x)
    expected = gradient(lambda x: ops.grouped_swiglu(x, gate, up, down, chosen, weights), x)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_no_token_for_any_expert():
    packed = PackedExperts(Experts(), dict.fromkeys(STACKED, Scheme("int4")), "experts")
    y = packed(paddle.ones([3, 12]), paddle.full([3, 2], -1, "int64"), paddle.ones([3, 2]))
    assert not y.numpy().any()


def test_experts_may_be_packed_in_part():
    base = Experts()
    packed = PackedExperts(base, {"up_proj": Scheme("int4")}, "experts")
    assert packed.packed_shapes() == {"up_proj": (5, 12, 7)}
    chosen, weights = paddle.to_tensor([[0], [4]]), paddle.ones([2, 1])
    x = paddle.ones([2, 12])
    expected = ops.grouped_swiglu(x, base.gate_proj, packed.dequantized("up_proj"), base.down_proj, chosen, weights)
    np.testing.assert_allclose(packed(x, chosen, weights).numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_only_experts_with_tokens_are_unpacked(monkeypatch):
    packed = PackedExperts(Experts(), dict.fromkeys(STACKED, Scheme("int4")), "experts")
    dtypes, of = [], ops.QuantizedMatrix.of
    monkeypatch.setattr(ops.QuantizedMatrix, "of", lambda self, experts: dtypes.append(experts) or of(self, experts))
    packed(paddle.ones([2, 12]), paddle.to_tensor([[3], [1]]), paddle.ones([2, 1]))
    assert dtypes == [[1, 3]] * 3


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("plugin", [wint8, wint4, wint4_8, nf4], ids=lambda p: p.name)
def test_model_of_codes_computes_what_the_numbers_compute(plugin, moe_model, another_moe_model):
    pack_model(moe_model, plugin.rules(plugin.Config()))
    targets = dict(another_moe_model.named_parameters())
    for name, weight in packed_weights(moe_model).items():
        targets[name].set_value(weight.dequantize_weight())
    for model in (moe_model, another_moe_model):
        model.eval()
    found, expected = (model(paddle.to_tensor(IDS)).numpy() for model in (moe_model, another_moe_model))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_packing_twice_gives_the_same_bits(moe_model, another_moe_model):
    for model in (moe_model, another_moe_model):
        pack_model(model, wint4_8.rules(wint4_8.Config()))
    first, second = (packed_weights(model) for model in (moe_model, another_moe_model))
    for name, weight in first.items():
        assert weight.quant_weight.numpy().tobytes() == second[name].quant_weight.numpy().tobytes()
        assert weight.weight_scale.numpy().tobytes() == second[name].weight_scale.numpy().tobytes()


def test_codes_and_scales_have_their_documented_names(moe_model):
    pack_model(moe_model, wint4_8.rules(wint4_8.Config()))
    names = moe_model.state_dict()
    assert "model.layers.1.mlp.experts.up_proj.quant_weight" in names
    assert "model.layers.1.self_attn.q_proj.weight_scale" in names
    assert "model.layers.1.self_attn.q_proj.weight" not in names


def test_layers_tell_adapters_what_they_hold():
    assert isinstance(PackedLinear(linear(), SCHEMES[0], "layer"), PackedLayer)
    assert isinstance(PackedExperts(Experts(), {"up_proj": SCHEMES[0]}, "experts"), PackedLayer)
    assert not isinstance(linear(), PackedLayer)


def test_bias_stays_as_it_is():
    base = linear()
    packed = PackedLinear(base, SCHEMES[0], "layer")
    assert packed.bias is base.bias
    assert PackedLinear(linear(bias=False), SCHEMES[0], "layer").bias is None


@pytest.mark.parametrize(
    "scheme", [Scheme("int8"), Scheme("int8", 6), Scheme("int4"), Scheme("int4", 6), Scheme("nf4", 6)]
)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_parts_of_codes_are_the_codes_of_a_part(scheme, axis):
    weight = paddle.randn([4, 12, 8])
    packed = PackedWeight(weight, scheme, "here")
    part = PackedWeight(paddle.split(weight, 2, axis)[1], scheme, "here")
    if axis == 1 and not scheme.group:  # one scale for all inputs: the parts have that of the whole
        assert packed.shard_axes(axis, 2) == {"quant_weight": 2}
        return
    for name, at in packed.shard_axes(axis, 2).items():
        assert (paddle.split(getattr(packed, name), 2, at)[1] == getattr(part, name)).all(), name


def test_a_byte_or_a_group_is_not_cut_through():
    odd = PackedWeight(paddle.randn([12, 6]), Scheme("int4", 12), "here")
    with pytest.raises(ValueError, match="two outputs share a byte, and 3 of 6"):
        odd.shard_axes(1, 2)
    with pytest.raises(ValueError, match="12 inputs share a scale, and 6 of 12"):
        odd.shard_axes(0, 2)
