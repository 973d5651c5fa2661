"""Layers of codes: the numbers that the numpy decoder has, products and gradients, stacked experts, adapters, sizes."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ccq import clusters, words
from erniecore_ccq.layers import KINDS, CodeExperts, CodeLinear, CodeWeight
from erniecore_ccq.plugin import ccq25, ccq206
from erniecore_ccq.schemes import CLUSTERS, GROUP, WORDS, CodeScheme
from erniecore_lora.plugin import lora
from erniecore_weight_only.packing import pack_model, packed_weights
from erniecore_weight_only.schemes import STACKED, Scheme

from erniecore.api import NumericsError, ops
from erniecore.api.quantizer import PackedLayer

QUANT_DTYPES = [WORDS, CLUSTERS]
IDS = np.random.default_rng(0).integers(5, 440, (2, 19))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def linear(inputs, outputs):
    layer = paddle.nn.Linear(inputs, outputs)
    layer.weight.set_value(normal(inputs, outputs))
    layer.bias.set_value(normal(outputs))
    return layer


def packed(weight, quant_dtype):
    return CodeWeight(paddle.to_tensor(weight), CodeScheme(quant_dtype, GROUP), "w")


def gradient(function, x):
    x = paddle.to_tensor(x, stop_gradient=False)
    y = function(x)
    (y * paddle.cos(paddle.arange(y.numel()).astype("float32")).reshape(y.shape)).sum().backward()
    return y.numpy(), x.grad.numpy()


class Experts(paddle.nn.Layer):
    """Stacked experts as models have them."""

    def __init__(self):
        super().__init__()
        for seed, (name, shape) in enumerate(zip(STACKED, ([5, 12, 7], [5, 12, 7], [5, 7, 12]), strict=True)):
            self.add_parameter(name, self.create_parameter(shape))
            getattr(self, name).set_value(normal(*shape, seed=seed))


DECODED = {
    WORDS: lambda w: words.decode(*words.encode(w), len(w)),
    CLUSTERS: lambda w: clusters.decode(clusters.encode(w), len(w)),
}


@pytest.mark.parametrize("quant_dtype", QUANT_DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (70, 3), (64, 6), (200, 5), (3, 130, 2)])
def test_numbers_and_bytes_are_those_of_the_codec(quant_dtype, shape):
    weight = normal(*shape)
    layer = packed(weight, quant_dtype)
    expected = DECODED[quant_dtype](weight) if weight.ndim == 2 else np.stack([DECODED[quant_dtype](w) for w in weight])
    np.testing.assert_array_equal(layer.dequantize_weight().numpy(), expected)
    stored_bytes = sum(buffer.numel().item() * buffer.element_size() for buffer in layer.buffers())
    assert stored_bytes == CodeScheme(quant_dtype, GROUP).num_bytes(shape)


@pytest.mark.parametrize("quant_dtype", QUANT_DTYPES)
def test_any_bits_decode_as_in_numpy(quant_dtype):
    layer, rng = packed(normal(140, 4), quant_dtype), np.random.default_rng(1)
    for name, buffer in layer.named_buffers():
        if buffer.dtype != paddle.float32:
            found = rng.integers(-(1 << 15), 1 << 15, buffer.shape).astype(np.int16)
            buffer.set_value(found if quant_dtype == WORDS else found.astype(np.uint8))
        else:
            buffer.set_value({"code_scale": 1000.5, "code_zp": 77.25}.get(name, 1) + rng.random(4).astype(np.float32))
    arrays = {name: buffer.numpy() for name, buffer in layer.named_buffers()}
    if quant_dtype == WORDS:
        expected = words.decode(arrays["quant_weight"].view(np.uint16), arrays["super_scale"], 140)
    else:
        expected = clusters.decode(clusters.Clusters(**arrays), 140)
    np.testing.assert_array_equal(layer.dequantize_weight().numpy(), expected)


@pytest.mark.parametrize("quant_dtype", QUANT_DTYPES)
@pytest.mark.parametrize("chunk", [1, 1 << 24])
def test_product_and_input_gradient_are_those_of_the_numbers(quant_dtype, chunk, monkeypatch):
    monkeypatch.setattr("erniecore_ops.packed_weights.CHUNK", chunk)
    base = linear(130, 7)
    layer = CodeLinear(base, CodeScheme(quant_dtype, GROUP), "layer")
    found = gradient(layer, normal(2, 3, 130))
    expected = gradient(
        lambda x: paddle.nn.functional.linear(x, layer.dequantized("weight"), base.bias), normal(2, 3, 130)
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 1 << 24])
def test_experts_of_mixed_forms_compute_with_their_numbers(chunk, monkeypatch):
    monkeypatch.setattr("erniecore_ops.packed_weights.CHUNK", chunk)
    schemes = dict(zip(STACKED, (CodeScheme(WORDS, GROUP), CodeScheme(CLUSTERS, GROUP), Scheme("int4")), strict=True))
    layer = CodeExperts(Experts(), schemes, "experts")
    gate, up, down = (layer.dequantized(name) for name in STACKED)
    chosen = paddle.to_tensor(np.random.default_rng(4).choice([-1, 0, 2, 4], (9, 2)))
    weights = paddle.to_tensor(np.abs(normal(9, 2)))
    found = gradient(lambda x: layer(x, chosen, weights), normal(9, 12))
    expected = gradient(lambda x: ops.grouped_swiglu(x, gate, up, down, chosen, weights), normal(9, 12))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("plugin", [ccq25, ccq206], ids=lambda p: p.name)
def test_adapter_learns_as_beside_the_numbers(plugin, make_moe_model):
    first, second = make_moe_model(), make_moe_model()
    pack_model(first, plugin.rules(plugin.Config()), KINDS)
    targets = dict(second.named_parameters())
    for name, weight in packed_weights(first).items():
        targets[name].set_value(weight.dequantize_weight())
    assert all(isinstance(layer, PackedLayer) for n, layer in first.named_sublayers() if n.endswith("q_proj"))
    (logits, gradients), (expected_logits, expected) = (learned(model) for model in (first, second))
    np.testing.assert_allclose(logits, expected_logits, rtol=1e-3, atol=1e-5)
    assert gradients.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            gradients[name], value, rtol=2e-3, atol=1e-5 * max(1, np.abs(value).max()), err_msg=name
        )


def learned(model):
    """Logits and gradients of a low-rank adapter."""
    paddle.seed(1)
    model = lora.ernie_adapt_model(config=lora.Config(rank=2), model=model)
    model.train()
    logits = model(paddle.to_tensor(IDS))
    paddle.nn.functional.cross_entropy(logits, paddle.to_tensor(IDS)).backward()
    return logits.numpy(), {name: p.grad.numpy() for name, p in model.named_parameters() if not p.stop_gradient}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("quant_dtype", QUANT_DTYPES)
def test_weights_that_are_not_finite_are_refused_by_name(bad, quant_dtype):
    weight = np.ones((4, 3), np.float32)
    weight[2, 1] = bad
    with pytest.raises(NumericsError, match="not finite") as caught:
        packed(weight, quant_dtype)
    assert caught.value.where == "w"


@pytest.mark.parametrize("quant_dtype", QUANT_DTYPES)
def test_exporters_learn_the_form(quant_dtype):
    layer = CodeLinear(linear(64, 3), CodeScheme(quant_dtype, GROUP), "layer")
    assert layer.stored("weight").quant_dtype == quant_dtype
