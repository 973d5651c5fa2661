"""Scaling of the residual stream: GPAS passes gradients unchanged and starts as the identity; LayerNorm scaling; folding both."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45.plugin import plugin
from erniecore_ernie45.residual import Residual, clip_gates, fold, gates, scale_residual

from erniecore.api import CheckpointError, ConfigError

SCALED = {"gpas": "straight-through", "layer_norm_scaling": True}


def silu(x):
    return x / (1 + np.exp(-x))


def hidden_states(seed=0, shape=(2, 3, 8)):
    return np.random.default_rng(seed).standard_normal(shape)


def gradients(x, gate, upstream, **options):
    x, gate = (paddle.to_tensor(value, stop_gradient=False) for value in (x, np.array([gate])))
    scale_residual(x, gate, **options).backward(paddle.to_tensor(upstream))
    return x.grad.numpy(), gate.grad.numpy()[0]


@pytest.mark.parametrize("gate", [0.0, 0.3, -0.7])
def test_gradient_of_the_stream_passes_bit_for_bit_and_that_of_the_gate_is_its_formula(gate):
    x, upstream = hidden_states(), hidden_states(1)
    found, slope = gradients(x, gate, upstream)
    np.testing.assert_array_equal(found, upstream)

    def value(a):
        return ((x - silu(a) * x) * upstream).sum()

    sigmoid = 1 / (1 + np.exp(-gate))
    assert slope == pytest.approx(-(sigmoid * (1 + gate * (1 - sigmoid))) * (upstream * x).sum(), rel=1e-12)
    assert slope == pytest.approx((value(gate + 1e-6) - value(gate - 1e-6)) / 2e-6, rel=1e-7)
    scaled_too, same = gradients(x, gate, upstream, straight_through=False)
    np.testing.assert_allclose(scaled_too, (1 - silu(gate)) * upstream, rtol=1e-12)
    assert same == slope


def test_a_gate_of_zero_changes_no_bit_and_has_half_the_slope():
    x = hidden_states()
    assert np.array_equal(scale_residual(paddle.to_tensor(x), paddle.zeros([1], "float64")).numpy(), x)
    assert gradients(x, 0.0, x)[1] == pytest.approx(-0.5 * (x * x).sum())


@pytest.fixture
def made(build, reference):
    """``made(**settings)``: the same weights with these settings; ``ids`` to run it on."""
    config = reference.config(num_hidden_layers=3)
    weights = reference.random_weights(config)
    return lambda **settings: build(plugin, config, weights, **settings)


IDS = np.random.default_rng(3).integers(0, 61, (2, 9))


def logits(model):
    with paddle.no_grad():
        return model(paddle.to_tensor(IDS)).numpy()


def open_gates(model, values=(0.4, -0.3, 0.2)):
    for (_, gate), value in zip(gates(model), values, strict=True):
        gate.set_value(paddle.to_tensor([value]))


def test_weights_without_gates_get_gates_that_change_no_bit(made):
    plain, gated = made(), made(gpas="straight-through")
    assert [name for name, _ in gates(gated)] == [f"model.layers.{i}.residual.gate" for i in range(3)]
    np.testing.assert_array_equal(logits(gated), logits(plain))
    gated.train()
    gated(paddle.to_tensor(IDS)).square().mean().backward()
    assert all(float(gate.grad.abs().sum()) > 0 for _, gate in gates(gated))
    assert gated.architecture["gpas"] == "straight-through"
    assert plain.decoder_plan() is not None
    assert gated.decoder_plan() is None, "fast decoding knows no gates"


def test_gates_scale_the_stream_after_both_halves_of_a_layer(made):
    model, seen = made(gpas="straight-through"), []
    open_gates(model)
    for layer in model.model.layers:
        layer.residual.register_forward_post_hook(lambda _, given, out: seen.append((given, out)))
    logits(model)
    assert len(seen) == 6
    for index, ((x, y), out) in enumerate(seen):
        factor = 1 - silu((0.4, -0.3, 0.2)[index // 2])
        np.testing.assert_allclose(out.numpy(), factor * (x + y).numpy(), rtol=2e-6, atol=1e-7)


def test_norms_of_layer_l_are_scaled_by_the_root_of_l(made):
    model, plain = made(layer_norm_scaling=True), made()
    x = paddle.to_tensor(hidden_states(5, (1, 2, model.arch.hidden_size)).astype("float32"))
    for index in range(3):
        for name in ("input_layernorm", "post_attention_layernorm"):
            one, other = (vars(m.model.layers[index])["_sub_layers"][name](x).numpy() for m in (model, plain))
            np.testing.assert_allclose(one, other / np.sqrt(index + 1), rtol=1e-6)
    np.testing.assert_array_equal(model.model.norm(x).numpy(), plain.model.norm(x).numpy())


@pytest.mark.parametrize("settings", [{"gpas": "straight-through"}, {"layer_norm_scaling": True}, SCALED])
def test_folded_weights_compute_the_same(settings, made):
    model = made(**settings)
    if "gpas" in settings:
        open_gates(model)
    before = logits(model)
    assert fold(model.model.layers) == ""
    assert not list(gates(model))
    assert all(type(layer.residual) is Residual for layer in model.model.layers)
    # the epsilon of the norms stays, while the stream is another
    np.testing.assert_allclose(logits(model), before, atol=2e-4)
    assert np.abs(before - logits(made())).max() > 1e-2, "there was something to fold"
    assert model.decoder_plan() is not None


def test_a_layer_that_erases_the_stream_cannot_be_folded(made):
    model = made(gpas="straight-through")
    open_gates(model, (0.0, 1.2785, 0.0))  # SiLU is 1
    assert "nothing is left" in fold(model.model.layers)
    assert len(list(gates(model))) == 3


def test_clipping_touches_gates_alone():
    given = {name: paddle.to_tensor([-3.0, 0.5]) for name in ("model.layers.0.residual.gate", "model.norm.weight")}
    clip_gates(given, 0.0)
    assert [value.tolist() for value in given.values()] == [[-3.0, 0.5]] * 2
    clip_gates(given, 1.0)
    assert [value.tolist() for value in given.values()] == [[-1.0, 0.5], [-3.0, 0.5]]


def test_gates_stay_float32_and_are_no_matrices(build, reference):
    config = reference.config()
    model = build(plugin, config, dtype="bfloat16", **SCALED)
    assert all(gate.dtype == paddle.float32 for _, gate in gates(model))
    assert plugin.ernie_model_layout().style("model.layers.0.residual.gate") == "replicate"


def test_scaled_norms_are_for_new_weights_and_unknown_words_are_refused(tmp_path, reference):
    import json

    config = reference.config()
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = plugin.Config(path=str(tmp_path), layer_norm_scaling=True)
    with pytest.raises(ConfigError, match="from its first step"):
        plugin.ernie_read_architecture(config=asked)
    (tmp_path / "config.json").write_text(json.dumps({**config, "layer_norm_scaling": True}))
    assert plugin.ernie_read_architecture(config=asked)["layer_norm_scaling"] is True
    with pytest.raises(CheckpointError, match="straight-through or plain"):
        plugin.ernie_read_architecture(config=plugin.Config(architecture={**config, "gpas": "yes"}))
