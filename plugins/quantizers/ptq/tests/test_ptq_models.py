"""Models quantized with data: what is watched, better outputs than rounding to nearest, input scales, refusals."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_fp8_qat.scales import learners
from erniecore_ptq import calibrate, rounding
from erniecore_ptq.chain import Chain
from erniecore_ptq.observers import HessianObserver, ObservedExperts, ObservedLinear, observe
from erniecore_ptq.plugin import awq, fp8, gptq
from erniecore_weight_only.packing import packed_weights
from erniecore_weight_only.plugin import wint4

from erniecore.api import ConfigError, DataError, NumericsError, UsageError
from erniecore.api.layers import replaced
from erniecore.api.quantizer import PackedLayer

RNG = np.random.default_rng(0)
BATCHES = [RNG.integers(5, 440, (4, 24)) for _ in range(3)]
EVAL_IDS = np.random.default_rng(1).integers(5, 440, (4, 24))


def calibrated(plugin, model, batches=BATCHES, **settings):
    return plugin.ernie_calibrate_model(config=plugin.Config(**settings), model=model, batches=batches)


def logits(model):
    model.eval()
    with paddle.no_grad():
        return model(paddle.to_tensor(EVAL_IDS)).numpy()


def noise(model, make_model, name):
    expected = logits(make_model(name))
    return np.square(logits(model) - expected).sum() / np.square(expected).sum()


@pytest.mark.parametrize("name", ["dense", "moe"])
def test_gptq_and_awq_keep_more_than_rounding_to_nearest(name, make_model):
    rounded = wint4.ernie_quantize_model(config=wint4.Config(group_size=32), model=make_model(name), phase="export")
    plain = noise(rounded, make_model, name)
    assert noise(calibrated(gptq, make_model(name), group_size=32), make_model, name) < plain
    if name == "dense":  # which experts random weights choose is decided by less than any rounding
        assert noise(calibrated(awq, make_model(name), group_size=32), make_model, name) < plain


@pytest.mark.parametrize("plugin", [gptq, awq], ids=lambda p: p.name)
def test_calibrating_repeats_bit_for_bit(plugin, make_model):
    one, other = (calibrated(plugin, make_model("moe")).state_dict() for _ in range(2))
    assert one.keys() == other.keys()
    assert all(one[name].numpy().tobytes() == other[name].numpy().tobytes() for name in one)


@pytest.mark.parametrize("plugin", [gptq, awq, fp8], ids=lambda p: p.name)
def test_codes_are_read_into_the_structure_of_export(plugin, make_model):
    """As a directory is opened: the layers of phase export on another model take every tensor, and compute the same."""
    model = calibrated(plugin, make_model("moe"))
    other = make_model("moe")
    for parameter in other.parameters():
        parameter.set_value(parameter * 0.5)
    other = plugin.ernie_quantize_model(config=plugin.Config(), model=other, phase="export")
    state, target = model.state_dict(), other.state_dict()
    assert {n: t.shape for n, t in state.items()} == {n: t.shape for n, t in target.items()}
    for name, tensor in target.items():
        tensor.set_value(state[name])
    np.testing.assert_array_equal(logits(other), logits(model))


@pytest.mark.parametrize("plugin", [gptq, awq], ids=lambda p: p.name)
def test_layers_say_what_they_lost(plugin, make_model):
    model = calibrated(plugin, make_model("moe"))
    packed = [layer for layer in model.sublayers() if isinstance(layer, PackedLayer)]
    assert packed
    for layer in packed:
        assert layer.measured.keys() == dict(layer.packed_shapes()).keys()
        assert all(10 < ratio < 60 for ratio in layer.measured.values())


def test_watched_layers_compute_what_they_did_and_are_put_back(make_model):
    model = make_model("moe")
    expected, before = logits(model), dict(model.named_sublayers())
    name = "model.layers.1.mlp.experts"
    experts = before[name]
    observed, x = ObservedExperts(experts), paddle.randn([9, experts.gate_proj.shape[1]])
    chosen, weights = paddle.to_tensor(RNG.integers(0, 4, (9, 2))), paddle.ones([9, 2])
    np.testing.assert_allclose(
        observed(x, chosen, weights).numpy(), experts(x, chosen, weights).numpy(), rtol=1e-4, atol=1e-5
    )
    model.eval()
    chain = Chain(model, BATCHES)
    observe(chain, 1, chain.through(0, []), [name])
    assert dict(model.named_sublayers()) == before
    np.testing.assert_array_equal(logits(model), expected)


def test_every_token_is_counted_for_the_experts_it_went_to(make_model):
    model = make_model("moe")
    names = ["model.layers.1.self_attn.q_proj", "model.layers.1.mlp.experts"]
    model.eval()
    chain = Chain(model, BATCHES)
    stats = observe(chain, 1, chain.through(0, []), names)
    tokens = sum(batch.size for batch in BATCHES)
    assert stats[names[0]]["weight"][0].rows == tokens
    for parts in stats[names[1]].values():
        assert sum(one.rows for one in parts) == tokens * model.architecture["moe_k"]


def test_statistics_are_those_of_all_rows():
    x = np.random.default_rng(2).standard_normal((30, 6)).astype(np.float32)
    stats = HessianObserver(6)
    for part in (x[:11], x[11:11], x[11:]):
        stats.add(paddle.to_tensor(part))
    np.testing.assert_allclose(stats.hessian, x.T @ x, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(stats.means, np.abs(x).mean(axis=0), rtol=1e-5)


def test_layer_by_layer_is_a_whole_pass(make_model):
    """What is kept between the layers is what they give in one pass; layers that ran are not called again."""
    model = make_model("moe")
    model.eval()
    chain = Chain(model, BATCHES)
    assert chain.names == [f"model.layers.{i}" for i in range(model.architecture["num_hidden_layers"])]
    places = [chain.place_of(f"{name}.mlp.up_proj") for name in (*chain.names, "model.mtp_block.0")]
    assert places == list(range(len(chain.names) + 1))
    streams, states = [], []
    for place in range(len(chain.names)):
        states = chain.through(place, states)
    hook = model.model.norm.register_forward_pre_hook(lambda layer, inputs: streams.append(inputs[0]))
    with paddle.no_grad():
        for ids in BATCHES:
            model.features(paddle.to_tensor(ids))
    hook.remove()
    for one, (stream, *_) in zip(streams, states, strict=True):
        np.testing.assert_array_equal(stream.numpy(), one.numpy())


@pytest.mark.parametrize("name", ["model.layers.2.self_attn.q_proj", "model.layers.2.mlp.experts"])
def test_codes_are_those_of_whole_passes_through_the_layers_quantized_before(name, make_model, monkeypatch):
    """Beside the model that is quantized layer by layer, some experts at a time: one whose first layers are quantized, observed
    in passes over all of it."""
    monkeypatch.setattr(calibrate, "_HESSIANS", 100_000)
    quantized, model = calibrated(gptq, make_model("moe")), make_model("moe")
    model.eval()
    for place in (0, 1):
        model.model.layers[place] = quantized.model.layers[place]
    base = dict(model.named_sublayers())[name]
    observed = (ObservedExperts if "experts" in name else ObservedLinear)(base)
    replaced(model, name, observed)
    with paddle.no_grad():
        for ids in BATCHES:
            model.features(paddle.to_tensor(ids))
    layer, settings = dict(quantized.named_sublayers())[name], gptq.Config()
    options = {key: getattr(settings, key) for key in ("damping", "by_activation", "search_scale")}
    for parameter, stats in observed.stats.items():
        packed = layer if parameter == "weight" else getattr(layer, parameter)
        weight = getattr(base, parameter).numpy().astype(np.float64)
        for expert, (w, stats_of) in enumerate(zip(weight.reshape([-1, *weight.shape[-2:]]), stats, strict=True)):
            assert stats_of.rows
            expected = rounding.gptq(w, stats_of.hessian, packed.scheme, **options)
            found = packed.dequantize_weight().numpy().reshape([-1, *weight.shape[-2:]])[expert]
            np.testing.assert_array_equal(found, expected.dequantize(packed.scheme.group).astype(np.float32))


def test_fp8_takes_the_largest_scale_of_the_data_or_none(make_model):
    static = calibrated(fp8, make_model("moe"))
    largest = [layer.activation_scale.item() for layer in learners(static).values()]
    assert all(scale > 0 for scale in largest)
    one = calibrated(fp8, make_model("moe"), BATCHES[:1])
    assert any(a.activation_scale.item() < b for a, b in zip(learners(one).values(), largest, strict=True))
    dynamic = calibrated(fp8, make_model("moe"), activations="dynamic")
    assert not any(layer.activation_scale.item() for layer in learners(dynamic).values())


def test_experts_that_no_token_reached_are_named(make_model):
    model = make_model("moe")
    weight = model.model.layers[1].mlp.moe_statics.e_score_correction_bias
    bias = np.zeros(weight.shape, np.float32)
    bias[0, 0] = -1e4
    weight.set_value(bias)
    notes = calibrated(gptq, model).quantizer_notes
    assert any("layers.1.mlp.experts.up_proj" in note and "1 of" in note for note in notes)


@pytest.mark.parametrize("plugin", [gptq, awq, fp8], ids=lambda p: p.name)
def test_too_little_data_is_refused(plugin, make_model):
    with pytest.raises(DataError, match="shorter than this quantizer needs") as caught:
        calibrated(plugin, make_model("dense"), [BATCHES[0][:1, :20]])
    assert caught.value.code == "ERN-D077"
    assert "20 tokens" in str(caught.value)


@pytest.mark.parametrize("plugin", [gptq, awq, fp8], ids=lambda p: p.name)
def test_weights_that_are_not_finite_are_refused(plugin, make_model):
    model = make_model("dense")
    weight = model.model.layers[0].mlp.up_proj.weight
    weight.set_value(np.where(np.arange(weight.size).reshape(weight.shape) == 3, np.nan, weight.numpy()))
    with pytest.raises(NumericsError):
        calibrated(plugin, model)


@pytest.mark.parametrize("plugin", [gptq, awq, fp8], ids=lambda p: p.name)
def test_unknown_patterns_phases_and_runs_are_refused(plugin, make_model):
    with pytest.raises(ConfigError, match="did you mean q_proj"):
        calibrated(plugin, make_model("dense"), layers=("qproj",))
    with pytest.raises(UsageError, match="unknown phase"):
        plugin.ernie_quantize_model(config=plugin.Config(), model=make_model("dense"), phase="train")
    with pytest.raises(ConfigError, match="ernie quantize MODEL"):
        plugin.ernie_check_settings(None)


def test_ignored_layers_stay(make_model):
    names = packed_weights(calibrated(gptq, make_model("moe"), ignore=("experts.*",)))
    assert names
    assert not any(".experts." in name for name in names)
