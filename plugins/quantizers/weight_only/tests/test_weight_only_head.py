"""Heads in int8 and bfloat16, which share the embedding's weight or have their own: they compute what the model with the
dequantized weight computes; and who does not take them. How kernels decode with them is in the tests of generation."""

from __future__ import annotations

import math

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_export.exporting import export_directory
from erniecore_model_init.new_model import init_model
from erniecore_ops.packed_weights import QuantizedMatrix
from erniecore_quantize.quantize import quantize_directory
from erniecore_text.training import train
from erniecore_weight_only.head import LookUp, PackedHead
from erniecore_weight_only.plugin import wint8
from erniecore_weight_only.schemes import head_place, packed_bytes

from erniecore.api import ConfigError, NumericsError, UsageError, layers, ops
from erniecore.engine.models.bundles import load_bundle
from erniecore.engine.models.filling import fill

SIZES = "hidden_size=64,intermediate_size=128,num_hidden_layers=2"
MODELS = {
    "tied": ("ernie45", SIZES),
    "own": ("ernie45", f"{SIZES},tie_word_embeddings=false"),
    "experts": ("ernie45-moe", f"{SIZES},moe_intermediate_size=32,moe_num_experts=4,moe_num_shared_experts=2"),
}


@pytest.fixture(scope="module", params=[(model, dtype) for model in MODELS for dtype in ("bfloat16", "float32")])
def base(request, tmp_path_factory):
    """A model's directory."""
    model, dtype = request.param
    name, sizes = MODELS[model]
    home = tmp_path_factory.mktemp(model)
    train(["the quick brown fox jumps over the lazy dog " * 20], 320).save(home)
    return init_model(name, sizes, home, home / "m", dtype=dtype).path


@pytest.fixture(params=["int8", "bf16"])
def packed(request, base):
    """The model with a packed head, and one that has the dequantized weight in its place; both with linear layers as before."""
    head = request.param
    model = load_bundle(base, tokenizer=False, empty=True).bundle.model
    model = wint8.ernie_quantize_model(wint8.Config(head=head, layers=("q_proj",)), model, "train")
    fill(model)
    plain = load_bundle(base, tokenizer=False, empty=True).bundle.model
    plain = wint8.ernie_quantize_model(wint8.Config(layers=("q_proj",)), plain, "train")
    fill(plain)
    weight, transposed, _ = plain.head()
    values = head_of(model).dequantize()
    weight.set_value(values if transposed else values.t())
    return head, model.eval(), plain.eval()


def head_of(model):
    (found,) = [layer for layer in model.sublayers() if isinstance(layer, PackedHead)]
    return found


def close(found, expected, tolerance=2e-6):
    scale = float(np.abs(expected).max())
    assert np.abs(found - expected).max() <= tolerance * scale


def test_logits_losses_and_gradients_are_those_of_the_dequantized_weight(packed):
    _, model, plain = packed
    ids, labels = paddle.arange(24).reshape([2, 12]), paddle.to_tensor([5, -100, 250, 0] * 6)
    found = []
    for one in (model, plain):
        features = one.features(ids).hidden.detach().reshape([-1, 64])
        features.stop_gradient = False
        weight, transposed, _ = one.head()
        loss = ops.linear_cross_entropy(
            features, weight.detach() if one is plain else weight, labels, transposed=transposed
        )
        (loss * paddle.linspace(0.5, 2.0, 24)).sum().backward()
        found.append((one(ids).numpy(), loss.numpy(), features.grad.numpy()))
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs)


def test_int8_changes_logits_by_what_rounding_changes(base):
    plain = load_bundle(base, tokenizer=False).bundle.model
    model = load_bundle(base, tokenizer=False, empty=True).bundle.model
    model = wint8.ernie_quantize_model(wint8.Config(head="int8", layers=("q_proj",)), model, "train")
    error = head_of(model).measured_error("weight")
    assert error is None  # nothing is read before it is filled
    fill(model)
    weight, transposed, _ = plain.head()
    original = (weight if transposed else weight.t()).numpy()
    scales = np.abs(original).max(axis=1) / np.float32(127)
    assert np.array_equal(head_of(model).weight_scale.numpy(), scales)
    assert np.array_equal(head_of(model).quant_weight.numpy(), np.rint(original / scales[:, None]).astype(np.int8))
    assert 38 < head_of(model).measured_error("weight").sqnr_db < 46


def test_a_file_in_bfloat16_loses_nothing_in_bf16(base):
    model = load_bundle(base, tokenizer=False, empty=True).bundle.model
    exact = layers.stored_dtype(model.head()[0]) == "bfloat16"
    model = wint8.ernie_quantize_model(wint8.Config(head="bf16", layers=("q_proj",)), model, "train")
    fill(model)
    found = head_of(model).measured_error("weight")
    assert exact == math.isinf(found.sqnr_db)
    assert exact or found.sqnr_db > 50


def test_directories_are_read_as_they_were_quantized(base, tmp_path):
    done = quantize_directory(base, tmp_path / "packed", "wint8", ["head=int8"])
    names = [loss.name for loss in done.layers]
    assert sum(name.endswith(("embed_tokens.weight", "lm_head.weight")) for name in names) == 1
    read = load_bundle(tmp_path / "packed", tokenizer=False).bundle
    again = load_bundle(base, tokenizer=False, empty=True).bundle.model
    again = wint8.ernie_quantize_model(wint8.Config(head="int8"), again, "export")
    fill(again)
    ids = paddle.arange(24).reshape([2, 12])
    assert np.array_equal(read.model.eval()(ids).numpy(), again.eval()(ids).numpy())
    assert read.architecture["quantization_config"]["settings"]["head"] == "int8"


def test_fastdeploy_does_not_take_it(base, tmp_path):
    quantize_directory(base, tmp_path / "packed", "wint8", ["head=int8"])
    with pytest.raises(UsageError, match="FastDeploy cannot load") as caught:
        export_directory(tmp_path / "packed", tmp_path / "out", "fastdeploy")
    assert caught.value.found == "a quantized head"
    assert not (tmp_path / "out").exists()


def test_the_plan_counts_bytes_of_values_and_scales():
    shapes = {"model.embed_tokens.weight": (1000, 64), "model.layers.0.self_attn.q_proj.weight": (64, 64)}
    sizes = packed_bytes(shapes, wint8.rules(wint8.Config()), "int8")
    assert sizes["model.embed_tokens.weight"] == 1000 * 64 + 4 * 1000
    assert packed_bytes(shapes, wint8.rules(wint8.Config()), "bf16")["model.embed_tokens.weight"] == 2 * 1000 * 64
    assert "model.embed_tokens.weight" not in packed_bytes(shapes, wint8.rules(wint8.Config()), "none")
    own = {**shapes, "lm_head.weight": (64, 1000)}
    assert {place.name for place in head_place(own, "int8")} == {"lm_head"}
    with pytest.raises(ConfigError, match=r"lm_head or embed_tokens"):
        head_place({"model.layers.0.q_proj.weight": (64, 64)}, "int8")


def test_a_model_that_computes_its_head_otherwise_is_refused():
    class Other(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.embed_tokens = paddle.nn.Embedding(16, 8)
            self.q_proj = paddle.nn.Linear(8, 8)

    with pytest.raises(ConfigError, match="Other does not compute with a head that is packed"):
        wint8.ernie_quantize_model(wint8.Config(head="int8"), Other(), "train")


@pytest.mark.parametrize("head", ["int8", "bf16"])
def test_values_that_are_not_finite_are_named(base, head):
    model = load_bundle(base, tokenizer=False).bundle.model
    weight = model.head()[0]
    values = weight.numpy()
    values[3, 5] = np.nan
    weight.set_value(values)
    with pytest.raises(NumericsError) as caught:
        wint8.ernie_quantize_model(wint8.Config(head=head, layers=("q_proj",)), model, "train")
    assert str(caught.value.where).endswith(("embed_tokens", "lm_head"))


def test_rows_are_looked_up_in_int8_alone():
    pairs = QuantizedMatrix(paddle.zeros([2, 4], "int8"), paddle.ones([4]), "int4", 0, 4)
    with pytest.raises(ValueError, match="int8 with a scale per row, found int4"):
        ops.quantized_rows(paddle.to_tensor([1]), pairs)


def test_an_embedding_gives_rows_of_the_dequantized_weight(packed):
    _, model, _ = packed
    layer = head_of(model)
    if isinstance(layer, LookUp):
        ids = paddle.to_tensor([[3, 0], [319, 3]])
        expected = layer.dequantize().numpy()[ids.numpy()]
        assert np.array_equal(layer(ids).numpy(), expected)
    else:
        rows = paddle.ones([2, 64])
        close(layer(rows).numpy(), rows.numpy() @ layer.dequantize().numpy().T)
