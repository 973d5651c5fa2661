"""Layers that round their inputs: static and dynamic scales, outliers moved to weights, what a layer says it lost."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_fp8_qat.packed import PackedLinear, PackedWeight
from erniecore_fp8_qat.plugin import w8a8 as trained_w8a8
from erniecore_fp8_qat.recipes import Integers
from erniecore_ptq.plugin import fp8, w4a8, w8a8

from erniecore.api import DataError, NumericsError
from erniecore.api.quantizer import PackedLayer

RNG = np.random.default_rng(0)
BATCHES = [RNG.integers(5, 440, (4, 24)) for _ in range(2)]


def calibrated(plugin, model, batches=BATCHES, **settings):
    return plugin.ernie_calibrate_model(config=plugin.Config(**settings), model=model, batches=batches)


def logits(model):
    model.eval()
    with paddle.no_grad():
        return model(paddle.to_tensor(BATCHES[0])).numpy()


def with_outliers(model, times=40.0):
    """Two channels of what the layers of the first block read are large; the model computes what it did before the norms."""
    for norm in (model.model.layers[0].input_layernorm, model.model.layers[0].post_attention_layernorm):
        weight = norm.weight.numpy().copy()
        weight[[3, 17]] *= times
        norm.weight.set_value(weight)
    return model


def worst(model):
    ratios = [
        ratio for layer in model.sublayers() if isinstance(layer, PackedLayer) for ratio in layer.measured.values()
    ]
    return min(ratios)


def test_product_is_that_of_integers():
    """[N, I] codes times [I, O] codes in int64, times both scales: float32 agrees to rounding."""
    base, x = paddle.nn.Linear(24, 10, bias_attr=False), RNG.standard_normal((7, 24)).astype(np.float32)
    layer = PackedLinear(base, Integers(8), "layer")
    layer.activation_scale.set_value(paddle.to_tensor([0.02]))
    x_quantized = np.clip(np.rint(x / np.float32(0.02)), -127, 127).astype(np.int64)
    qat_matmul = x_quantized @ layer.quant_weight.numpy().T.astype(np.int64)
    expected = qat_matmul * np.float32(0.02) * layer.weight_scale.numpy()
    np.testing.assert_allclose(layer(paddle.to_tensor(x)).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_dynamic_scales_are_of_each_row():
    """A row keeps its precision beside one that is a thousand times larger."""
    base = paddle.nn.Linear(24, 10, bias_attr=False)
    layer = PackedLinear(base, Integers(8, rows=True), "layer")
    x = RNG.standard_normal((2, 24)).astype(np.float32)
    alone, fused_partners = (layer(paddle.to_tensor(rows)).numpy() for rows in (x[:1], x * [[1], [1000]]))
    np.testing.assert_array_equal(fused_partners[0], alone[0])


def test_smoothing_keeps_what_outliers_would_cost(make_model):
    plain, smooth = (worst(calibrated(w8a8, with_outliers(make_model("moe")), smoothing=alpha)) for alpha in (0.0, 0.5))
    assert smooth > plain + 4


def test_hadamard_blocks_keep_it_too(make_model):
    plain, hadamard_block = (
        worst(calibrated(w8a8, with_outliers(make_model("moe")), smoothing=0.0, hadamard_block=n)) for n in (0, 16)
    )
    assert hadamard_block > plain + 3


def test_layers_that_read_the_same_inputs_have_the_same_factors(make_model):
    model = calibrated(w8a8, with_outliers(make_model("moe")))
    layers = dict(model.named_sublayers())
    for group in (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")):
        factors = [layers[f"model.layers.0.{name}"].input_scale.numpy() for name in group]
        assert factors[0][3] > 2 * np.median(factors[0])
        for other in factors[1:]:
            np.testing.assert_array_equal(other, factors[0])


def test_factors_alone_change_nothing(make_model):
    """x / s times s W is x W: with sixteen-bit-like precision of nothing rounded the report would be infinite; here, unpacked
    weights are those of the base up to half a step of the codes."""
    base = make_model("dense")
    before = {n: p.numpy().copy() for n, p in base.named_parameters()}
    model = calibrated(w8a8, with_outliers(base))
    for name, layer in model.named_sublayers():
        if isinstance(layer, PackedWeight):
            step = layer.weight_scale.numpy() / layer.input_scale.numpy()[:, None]
            assert (np.abs(layer.dequantized("weight").numpy() - before[f"{name}.weight"]) <= 0.51 * step).all()


@pytest.mark.parametrize("plugin", [w8a8, w4a8], ids=lambda p: p.name)
@pytest.mark.parametrize("activations", ["static", "dynamic"])
def test_codes_are_read_into_the_structure_of_export(plugin, activations, make_model):
    settings = {"activations": activations, "cache": "int8"}
    model = calibrated(plugin, make_model("moe"), **settings)
    other = make_model("moe")
    other = plugin.ernie_quantize_model(config=plugin.Config(**settings), model=other, phase="export")
    state, target = model.state_dict(), other.state_dict()
    assert {n: t.shape for n, t in state.items()} == {n: t.shape for n, t in target.items()}
    for name, tensor in target.items():
        tensor.set_value(state[name])
    np.testing.assert_array_equal(logits(other), logits(model))


def test_form_is_that_of_training(make_model):
    """The same weights have the same codes, whether they were trained in this form or rounded to it."""
    trained = trained_w8a8.ernie_quantize_model(
        config=trained_w8a8.Config(hadamard_block=16), model=make_model("moe"), phase="export"
    )
    rounded = calibrated(w8a8, make_model("moe"), smoothing=0.0, hadamard_block=16)
    state = rounded.state_dict()
    assert trained.state_dict().keys() == state.keys()
    for name, tensor in trained.state_dict().items():
        if not name.endswith(("activation_scale", "activation_steps")):
            np.testing.assert_array_equal(tensor.numpy(), state[name].numpy())


def test_four_bits_take_half_the_bytes(make_model):
    sizes = []
    for plugin in (w8a8, w4a8):
        state = calibrated(plugin, make_model("dense")).state_dict()
        sizes.append(sum(t.size for n, t in state.items() if n.endswith("quant_weight")))
    assert sizes[1] == sizes[0] / 2


@pytest.mark.parametrize("plugin", [w8a8, w4a8, fp8], ids=lambda p: p.name)
def test_every_layer_says_what_its_output_lost(plugin, make_model):
    model = calibrated(plugin, make_model("moe"))
    packed = [layer for layer in model.sublayers() if isinstance(layer, PackedLayer) and hasattr(layer, "measured")]
    assert packed
    assert all(8 < ratio < 80 for layer in packed for ratio in layer.measured.values())


def test_short_data_and_inputs_that_are_not_finite_are_refused(make_model):
    with pytest.raises(DataError, match="shorter than this quantizer needs"):
        calibrated(w8a8, make_model("dense"), [BATCHES[0][:1, :20]])
    model = make_model("dense")
    weight = model.model.layers[0].input_layernorm.weight
    weight.set_value(paddle.full_like(weight, float("inf")))
    with pytest.raises(NumericsError):
        calibrated(w8a8, model)
