"""Weights kept in bfloat16: mapped where the file has them so, exact, trained upon by an adapter, planned to the byte."""

from __future__ import annotations

from collections import Counter

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_lora.build import adapt
from erniecore_lora.config import LoraConfig, Variant
from erniecore_model_init.new_model import init_model
from erniecore_quantize.quantize import quantize_directory
from erniecore_text.training import train
from erniecore_weight_only.kept import KeptWeight
from erniecore_weight_only.plugin import bf16

from erniecore.api import building, layers
from erniecore.engine.models.bundles import load_bundle
from erniecore.engine.models.filling import mapped_bytes
from erniecore.engine.models.weights import attach_weights, check_weights

SIZES = {
    "ernie45": "hidden_size=64,intermediate_size=128,num_hidden_layers=2",
    "ernie45-moe": "hidden_size=64,intermediate_size=128,num_hidden_layers=2,moe_intermediate_size=32,moe_num_experts=4"
    ",moe_num_shared_experts=2",
}


@pytest.fixture(scope="module", params=[(name, dtype) for name in SIZES for dtype in ("bfloat16", "float32")])
def base(request, tmp_path_factory):
    """Model plugin, dtype of the file, and its directory."""
    name, dtype = request.param
    home = tmp_path_factory.mktemp("base")
    train(["the quick brown fox jumps over the lazy dog " * 20], 320).save(home)
    return name, dtype, init_model(name, SIZES[name], home, home / "m", dtype=dtype).path


def build(name, directory):
    """An empty model with its sources, and what the state adapter says of it."""
    bundle, _ = building.build_bundle(building.model_plugin(name), {"path": str(directory)}, None, "float32")
    attach_weights(bundle.model, directory, check_weights(directory, bundle.architecture, bundle.adapter))
    return bundle


def kept(name, directory):
    bundle = build(name, directory)
    model = bf16.ernie_quantize_model(bf16.Config(), bundle.model, "train")
    layers.fill(model)
    return model, bundle


def mapped_ranges(directory):
    """Addresses at which this process has mapped files of ``directory``."""
    with open("/proc/self/maps") as lines:
        words = [line.split() for line in lines if str(directory) in line]
    return [tuple(int(end, 16) for end in word[0].split("-")) for word in words]


def whole(name, directory):
    model = build(name, directory).model
    layers.fill(model)
    return model


def test_values_are_those_of_the_file_and_products_those_of_float32(base):
    name, dtype, directory = base
    model, _ = kept(name, directory)
    parameters, ids = whole(name, directory).state_dict(), paddle.arange(24).reshape([2, 12])
    found = {key: layer for key, layer in model.named_sublayers() if isinstance(layer, KeptWeight)}
    assert found
    for key, layer in found.items():
        expected = parameters[f"{key}.weight" if f"{key}.weight" in parameters else key]
        rounded = expected if dtype == "bfloat16" else expected.astype("bfloat16").astype("float32")
        assert np.array_equal(layer.dequantize_weight().numpy(), rounded.numpy()), key
    with paddle.no_grad():
        logits, reference = model(ids).numpy(), whole(name, directory)(ids).numpy()
    if dtype == "bfloat16":
        np.testing.assert_allclose(logits, reference, rtol=1e-4, atol=1e-5)
    else:
        assert not np.allclose(logits, reference, rtol=1e-6, atol=1e-7), "rounding has to show"


def test_matrices_of_a_bfloat16_file_are_views_of_it(base):
    name, dtype, directory = base
    model, _ = kept(name, directory)
    linear = [t for _, layer in model.named_sublayers() if isinstance(layer, KeptWeight) for t in layer.buffers()]
    linear = [t for t in linear if t.ndim == 2]
    ranges = mapped_ranges(directory)
    inside = [any(start <= t.data_ptr() < end for start, end in ranges) for t in linear]
    assert linear
    assert all(inside) == (dtype == "bfloat16") == any(inside)


def test_tensors_over_mapped_files_are_counted_once(base):
    """By their addresses in the maps of the process: no allocator has them, and the end of a run says them beside the plan."""
    name, dtype, directory = base
    model, _ = kept(name, directory)
    ranges = mapped_ranges(directory)
    tensors = {t.data_ptr(): int(t.size) * t.element_size() for t in (*model.parameters(), *model.buffers())}
    inside = [size for place, size in tensors.items() if any(start <= place < end for start, end in ranges)]
    assert mapped_bytes(model) == sum(inside)
    assert bool(inside) == (dtype == "bfloat16")


def test_the_plan_has_the_bytes_that_are_kept(base):
    name, _, directory = base
    model, bundle = kept(name, directory)
    shapes = {entry.name: entry.shape for entry in bundle.adapter.maps("pt")}
    planned = bf16.ernie_packed_bytes(bf16.Config(), shapes)
    built = {}
    for key, layer in model.named_sublayers():
        if isinstance(layer, KeptWeight):
            place = f"{key}.weight" if f"{key}.weight" in shapes else key
            built[place] = sum(int(t.size) * t.element_size() for t in layer.buffers())
    assert planned == built


def test_an_adapter_learns_on_them(base):
    name, _, directory = base
    model, _ = kept(name, directory)
    model = adapt(model, LoraConfig(), Variant())
    before = {key: t.numpy() for key, t in model.named_buffers()}
    paddle.seed(0)
    logits = model(paddle.arange(24).reshape([2, 12]))
    logits.square().mean().backward()
    grads = [p.grad for p in model.parameters() if not p.stop_gradient]
    assert grads
    assert all(g is not None for g in grads)
    assert any(float(g.abs().max()) > 0 for g in grads)
    assert all(np.array_equal(t.numpy(), before[key]) for key, t in model.named_buffers())


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_shard_has_the_outputs_or_inputs_of_its_rank(axis, swapped):
    values = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    layer = KeptWeight(paddle.to_tensor(values), bf16.rules(bf16.Config())[0].scheme, "w")
    if swapped:
        layer.register_buffer("quant_weight", layer.quant_weight.transpose([1, 0]).contiguous())
        layer.swapped = True
    stored = layer.shard_axes(axis, 2)["quant_weight"]
    layer.register_buffer("quant_weight", paddle.split(layer.quant_weight, 2, stored)[1])
    rounded = paddle.to_tensor(values).astype("bfloat16").astype("float32").numpy()
    assert np.array_equal(layer.dequantize_weight().numpy(), np.split(rounded, 2, axis)[1])
    assert layer.shape == np.split(values, 2, axis)[1].shape


def kinds_of(model):
    return Counter(type(layer).__name__ for _, layer in model.named_sublayers())


def test_a_model_that_is_only_used_keeps_what_files_have_in_bfloat16(base):
    """Linear layers, experts and the embedding; a float32 file is never rounded. The fused pass takes it; logits are equal."""
    name, dtype, directory = base
    model = load_bundle(directory, compact=True).bundle.model
    kinds, ids = kinds_of(model), paddle.arange(24).reshape([2, 12])
    assert (kinds["KeptLinear"] > 0) == (dtype == "bfloat16")
    assert (kinds["KeptExperts"] > 0) == (dtype == "bfloat16" and name == "ernie45-moe")
    assert (model.model.embed_tokens.weight.dtype == paddle.bfloat16) == (dtype == "bfloat16")
    assert model.decoder_plan() is not None
    with paddle.no_grad():
        np.testing.assert_allclose(model(ids).numpy(), whole(name, directory)(ids).numpy(), rtol=1e-4, atol=1e-5)


def test_what_a_quantizer_left_in_bfloat16_is_kept_too(base, tmp_path):
    """``wint4-8`` packs no shared experts."""
    name, dtype, directory = base
    packed = tmp_path / "packed"
    quantize_directory(directory, packed, "wint4-8")
    plain, compact = load_bundle(packed).bundle.model, load_bundle(packed, compact=True).bundle.model
    before, after, ids = kinds_of(plain), kinds_of(compact), paddle.arange(24).reshape([2, 12])
    assert after["PackedLinear"] == before["PackedLinear"] > 0
    assert after["PackedExperts"] == before["PackedExperts"]
    assert (after["KeptLinear"] > 0) == (dtype == "bfloat16" and name == "ernie45-moe")
    with paddle.no_grad():
        np.testing.assert_allclose(compact(ids).numpy(), plain(ids).numpy(), rtol=1e-4, atol=1e-5)
