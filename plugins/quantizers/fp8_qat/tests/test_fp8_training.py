"""What layers compute in training, forward and backward; the input scale over steps; what an export computes."""

import copy
from types import SimpleNamespace

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_fp8_qat.convert import to_packed, to_qat
from erniecore_fp8_qat.layers import QatLinear, rounded
from erniecore_fp8_qat.packed import PackedLinear, PackedWeight
from erniecore_fp8_qat.plugin import block, qat
from erniecore_fp8_qat.recipes import BlockWise, TensorWise
from erniecore_fp8_qat.scales import end_step, learners

from erniecore.api import ConfigError, NumericsError, UsageError
from erniecore.api.quantizer import PackedLayer
from erniecore.api.testing import SingleProcess
from erniecore.engine.models.quantized import own_state

IDS = np.random.default_rng(0).integers(5, 440, (2, 19))
RECIPES = [TensorWise(), TensorWise(4), TensorWise(4, "e5m2", "e5m2"), BlockWise(), BlockWise("exact")]


def linear(inputs=12, outputs=7, bias=None):
    paddle.seed(1)
    layer = paddle.nn.Linear(inputs, outputs, bias_attr=bias)
    if layer.bias is not None:
        layer.bias.set_value(paddle.randn([outputs]))
    return layer


def trained(recipe, warmup=3, rate=0.25):
    return QatLinear(linear(), recipe, warmup, rate, "layer")


def batch(seed, rows=6, inputs=12):
    return np.random.default_rng(seed).standard_normal((rows, inputs)).astype(np.float32)


def quantized(plugin, model, phase="train", **settings):
    return plugin.ernie_quantize_model(config=plugin.Config(**settings), model=model, phase=phase)


def learned(model):
    model.train()
    logits = model(paddle.to_tensor(IDS))
    paddle.nn.functional.cross_entropy(logits, paddle.to_tensor(IDS)).backward()
    return {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_gradients_are_those_of_the_rounded_product(recipe):
    """dX = g(dY) Q(W)ᵀ in the basis of the input, dW = Xᵀ dY, in float64 from the recipe's own numbers."""
    layer, x = trained(recipe), paddle.to_tensor(batch(1), stop_gradient=False)
    dy = np.random.default_rng(2).standard_normal((6, 7)).astype(np.float32)
    y = layer(x)
    (y * paddle.to_tensor(dy)).sum().backward()
    transformed = recipe.transform(x.detach())
    scale = recipe.scale_of(transformed.abs().max())
    dequantized = rounded(layer)
    expected = recipe.activation(transformed, scale).numpy().astype(np.float64) @ dequantized.numpy()
    np.testing.assert_allclose(y.numpy() - layer.bias.numpy(), expected, rtol=1e-4, atol=1e-5)
    expected_dx = recipe.for_input(paddle.to_tensor(dy)).numpy().astype(np.float64) @ dequantized.numpy().T
    dx = recipe.transform(paddle.to_tensor(expected_dx.astype(np.float32))).numpy()
    np.testing.assert_allclose(x.grad.numpy(), dx, rtol=1e-4, atol=1e-5)
    left, right = recipe.for_weight(x.detach(), paddle.to_tensor(dy), scale)
    np.testing.assert_allclose(layer.weight.grad.numpy(), left.numpy().T @ right.numpy(), rtol=1e-4, atol=1e-5)


def test_exact_weight_gradient_is_that_of_the_unrounded_layer():
    layer, plain, x = trained(TensorWise(4)), linear(), paddle.to_tensor(batch(1))
    for one in (layer, plain):
        (one(x) * 3).sum().backward()
    np.testing.assert_allclose(layer.weight.grad.numpy(), plain.weight.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_gradients_are_near_the_exact_ones(recipe):
    found, expected = [], []
    for layer, kept in ((trained(recipe), found), (linear(), expected)):
        x = paddle.to_tensor(batch(1, rows=64), stop_gradient=False)
        (layer(x) ** 2).sum().backward()
        kept += [x.grad.numpy(), layer.weight.grad.numpy()]
    for one, other in zip(found, expected, strict=True):
        assert np.linalg.norm(one - other) < 0.12 * np.linalg.norm(other)


def steps(layer, seeds, applied=True):
    model = paddle.nn.LayerList([layer])
    model.train()
    for seed in seeds:
        layer(paddle.to_tensor(batch(seed)))
        end_step(model, SingleProcess(), applied=applied)


def scale_of_batch(recipe, seed):
    return recipe.scale_of(recipe.transform(paddle.to_tensor(batch(seed))).abs().max()).item()


def test_scale_is_a_mean_first_and_then_moves_slowly():
    recipe = TensorWise(4)
    layer = trained(recipe, warmup=3, rate=0.25)
    fresh = [scale_of_batch(recipe, seed) for seed in range(5)]
    mean = float(np.mean(fresh[:3]))
    steps(layer, range(3))
    assert layer.activation_scale.item() == pytest.approx(mean, rel=1e-6)
    steps(layer, [3, 4])
    for s in fresh[3:]:
        mean = 0.75 * mean + 0.25 * s
    assert layer.activation_scale.item() == pytest.approx(mean, rel=1e-6)
    assert layer.activation_steps.item() == 5


def test_batches_have_their_own_scale_until_the_warm_up_is_over():
    recipe = TensorWise()
    layer, x = trained(recipe, warmup=2), batch(9) * 10
    expected = QatLinear(linear(), recipe, 5, 0.1, "layer")(paddle.to_tensor(x)).numpy()
    steps(layer, [0])
    np.testing.assert_array_equal(layer(paddle.to_tensor(x)).numpy(), expected)
    steps(layer, [1, 2])
    layer.train()
    found = layer(paddle.to_tensor(x)).numpy()
    assert not np.array_equal(found, expected)  # ten times what was seen: clipped at the mean scale
    layer.eval()
    np.testing.assert_array_equal(layer(paddle.to_tensor(x)).numpy(), found)


def test_scale_is_of_the_whole_step_however_it_is_cut():
    """Micro-batches, and layers that are computed twice, change nothing."""
    whole, parts = trained(TensorWise(4)), trained(TensorWise(4))
    x = batch(3, rows=8)
    whole(paddle.to_tensor(x))
    for part in (x[:3], x[3:], x[3:]):
        parts(paddle.to_tensor(part))
    for layer in (whole, parts):
        end_step(paddle.nn.LayerList([layer]), SingleProcess(), applied=True)
    assert whole.activation_scale.item() == parts.activation_scale.item() > 0


def test_largest_scale_of_all_ranks_counts():
    layer = trained(TensorWise(4))
    layer(paddle.to_tensor(batch(0)))
    other = 2 * layer.step_scale().item()
    end_step(
        paddle.nn.LayerList([layer]),
        SimpleNamespace(all_gather_object=lambda v: [v, dict.fromkeys(v, other)]),
        applied=True,
    )
    assert layer.activation_scale.item() == np.float32(other)


def test_skipped_step_and_evaluation_leave_no_trace():
    layer = trained(TensorWise(4))
    steps(layer, [0], applied=False)
    assert (layer.activation_scale.item(), layer.activation_steps.item()) == (0, 0)
    layer.eval()
    layer(paddle.to_tensor(100 * batch(0)))
    assert layer.step_scale().item() == 0


@pytest.mark.parametrize("plugin", [qat, block], ids=lambda p: p.name)
@pytest.mark.parametrize("name", ["dense", "moe"])
def test_every_weight_learns_and_stays_as_it_is(plugin, name, make_model):
    model, plain = quantized(plugin, make_model(name)), make_model(name)
    gradients, expected = learned(model), learned(plain)
    assert gradients.keys() == expected.keys()
    before = dict(plain.named_parameters())
    for parameter, value in model.named_parameters():
        assert value.numpy().tobytes() == before[parameter].numpy().tobytes(), parameter
    found, exact = (np.concatenate([g[n].ravel() for n in sorted(g)]) for g in (gradients, expected))
    assert found @ exact > 0.85 * np.linalg.norm(found) * np.linalg.norm(exact)
    assert [n for n in expected if expected[n].any()] == [n for n in gradients if gradients[n].any()]


@pytest.mark.parametrize("plugin", [qat, block], ids=lambda p: p.name)
@pytest.mark.parametrize("name", ["dense", "moe"])
def test_export_computes_what_was_trained_bit_for_bit(plugin, name, make_model):
    model = quantized(plugin, make_model(name), **({"scale_warmup": 1} if plugin is qat else {}))
    for _ in range(2):
        learned(model)
        end_step(model, SingleProcess(), applied=True)
    model.eval()
    expected, scales = (
        model(paddle.to_tensor(IDS)).numpy(),
        [s.activation_scale.item() for s in learners(model).values()],
    )
    packed = quantized(plugin, model, "export", **({"scale_warmup": 1} if plugin is qat else {}))
    np.testing.assert_array_equal(packed(paddle.to_tensor(IDS)).numpy(), expected)
    assert [s.activation_scale.item() for s in learners(packed).values()] == scales
    assert all(scale > 0 for scale in scales)
    assert any(isinstance(layer, PackedLayer) for layer in packed.sublayers())


def test_codes_are_one_byte_and_have_their_documented_names(make_model):
    state = quantized(qat, make_model("moe"), "export").state_dict()
    for name in ("self_attn.q_proj", "mlp.experts.up_proj"):
        assert str(state[f"model.layers.1.{name}.quant_weight"].dtype) == "paddle.uint8"
        assert {f"model.layers.1.{name}.{x}" for x in ("weight_scale", "activation_scale")} <= state.keys()


def test_unpacked_weight_is_in_the_basis_of_the_weight():
    base = linear(64, 32)
    dequantized = PackedLinear(base, TensorWise(32), "layer").dequantized("weight").numpy()
    assert np.linalg.norm(dequantized - base.weight.numpy()) < 0.03 * np.linalg.norm(base.weight.numpy())


def test_gradient_passes_through_codes_to_an_adapter():
    x = paddle.to_tensor(batch(1), stop_gradient=False)
    layer, qweight = trained(TensorWise(4)), PackedLinear(linear(), TensorWise(4), "layer")
    found = []
    for one in (layer, qweight):
        x.clear_gradient(False)
        (one(x) ** 2).sum().backward()
        found.append(x.grad.numpy().copy())
    np.testing.assert_array_equal(*found)


def test_only_input_scales_belong_to_the_quantizer(make_model):
    model = quantized(qat, make_model("moe"))
    assert set(model.state_dict()) - own_state(model) == set(make_model("moe").state_dict())
    assert not own_state(quantized(block, make_model("moe")))


def test_copy_as_a_reference_has_scales_of_its_own(make_model):
    model = quantized(qat, make_model("dense"))
    other = copy.deepcopy(model)
    learned(model)
    end_step(model, SingleProcess(), applied=True)
    assert all(layer.activation_scale.item() > 0 for layer in learners(model).values())
    assert not any(layer.activation_scale.item() for layer in learners(other).values())


@pytest.mark.parametrize("convert", [to_qat, to_packed])
def test_weights_that_are_not_finite_are_named(convert, make_model):
    model = make_model("moe")
    weight = model.model.layers[1].mlp.experts.up_proj
    weight.set_value(np.where(np.arange(weight.size).reshape(weight.shape) == 3, np.nan, weight.numpy()))
    arguments = (3, 0.1) if convert is to_qat else ()
    with pytest.raises(NumericsError, match=r"layers\.1\.mlp\.experts\.up_proj"):
        convert(model, qat.rules(qat.Config()), lambda width: TensorWise(), *arguments)


def test_other_settings_on_a_quantized_model_are_refused(make_model):
    model = quantized(qat, make_model("dense"))
    for plugin, phase, settings in ((qat, "train", {"hadamard_block": 0}), (block, "train", {}), (block, "export", {})):
        with pytest.raises(UsageError, match="another way"):
            quantized(plugin, model, phase, **settings)


def test_unknown_pattern_is_refused(make_model):
    with pytest.raises(ConfigError, match="did you mean q_proj"):
        quantized(qat, make_model("dense"), layers=("qproj",))


def checked(plugin, adapter=None, context=1, **config):
    """The keys of what the plugin refuses."""
    parallel = SimpleNamespace(degree=lambda axis: context if axis == "context" else 1)
    settings = SimpleNamespace(adapter=adapter, parallel=parallel, quantizer=plugin.Config(**config))
    try:
        plugin.ernie_check_settings(settings)
    except ConfigError as error:
        return [problem.key for problem in error.problems]
    return []


def test_adapters_are_refused_by_name():
    assert checked(qat, adapter=object()) == ["adapter"]


@pytest.mark.parametrize(
    ("plugin", "config", "refused"),
    [
        (qat, {}, None),
        (qat, {"input_gradient": "e5m2"}, "input_gradient"),
        (qat, {"weight_gradient": "e5m2"}, "weight_gradient"),
        (block, {}, "weight_gradient"),
        (block, {"weight_gradient": "exact"}, None),
    ],
)
def test_scales_of_rows_that_no_rank_has_are_refused(plugin, config, refused):
    assert checked(plugin, context=2, **config) == ([f"quantizer.{refused}"] if refused else [])
    assert checked(plugin, **config) == []


def test_ignored_layers_stay(make_model):
    model = quantized(qat, make_model("moe"), "export", ignore=("self_attn.*",))
    names = {name for name, layer in model.named_sublayers() if isinstance(layer, PackedWeight)}
    assert names
    assert not any("self_attn" in name for name in names)
