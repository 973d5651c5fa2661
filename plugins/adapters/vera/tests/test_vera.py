"""What VeRA computes, in float64 and on real models; what it reads, writes and refuses."""

import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from adapter_checks import IDS, NAMES, linear, logits
from erniecore_lora import adapt
from erniecore_vera.build import load
from erniecore_vera.layers import Shared, Vectors, VeraLinear
from erniecore_vera.plugin import plugin
from erniecore_vera.projections import draw
from erniecore_vera.save import save

from erniecore.api import CheckpointError, ConfigError, UsageError
from erniecore.api.layers import keep_part
from erniecore.api.tensors import read_tensors, write_tensors


def adapted(model, **settings):
    return plugin.ernie_adapt_model(config=plugin.Config(**{"rank": 6, **settings}), model=model)


def shaken(model, seed=1):
    """With vectors that are far from where they begin."""
    paddle.seed(seed)
    for vectors in adapt.updates(model, adapt.active(model)).values():
        vectors.d.set_value(paddle.randn(vectors.d.shape))
        vectors.b.set_value(0.3 * paddle.randn(vectors.b.shape))
    return model


def saved(model, directory, **options):
    directory.mkdir()
    return save(model, directory, **options)


def test_the_matrices_are_those_that_peft_draws():
    """Seed 7, rank 2, three inputs and two outputs; the numbers are torch 2.15's."""
    a = [[0.09877585619688034, -0.8519132137298584, 0.45031866431236267]]
    a += [[0.4437527060508728, -0.7558644413948059, -0.21195834875106812]]
    b = [[-1.014683723449707, 0.44941994547843933], [-0.4665585160255432, 1.2168292999267578]]
    drawn = draw(7, 2, [(3, 1), (1, 2)])
    assert np.array_equal(drawn.a, np.float32(a))
    assert np.array_equal(drawn.b, np.float32(b))


def test_the_layer_is_the_formula_in_float64():
    """y = x W + c + b ∘ ((d ∘ (x A)) B), of which this layer takes 5 of 8 inputs and 3 of 4 outputs; and its gradients."""
    rng, drawn = np.random.default_rng(3), draw(1, 2, [(8, 3), (5, 4)])
    base = linear(5, 3)
    layer, vectors = VeraLinear(base), Vectors((5, 3), "float64", Shared(drawn, "float64"), 0.1)
    layer.attach("default", "weight", vectors)
    layer.active = "default"
    d, b, x, dy = (rng.normal(size=shape) for shape in (2, 3, (7, 5), (7, 3)))
    vectors.d.set_value(d)
    vectors.b.set_value(b)
    w, c = base.weight.numpy(), base.bias.numpy()
    first, second = drawn.a[:, :5].T.astype(np.float64), drawn.b[:3].T.astype(np.float64)
    y = layer(paddle.to_tensor(x))
    np.testing.assert_allclose(y.numpy(), x @ w + c + b * ((d * (x @ first)) @ second), rtol=1e-13)
    update = layer.projection("weight").update  # what decoding computes with
    added = x @ update.first.numpy() @ update.second.numpy() * update.scale
    np.testing.assert_allclose(x @ w + c + added, y.numpy(), rtol=1e-12)
    (y * paddle.to_tensor(dy)).sum().backward()
    np.testing.assert_allclose(vectors.b.grad.numpy(), (dy * ((d * (x @ first)) @ second)).sum(0), rtol=1e-12)
    np.testing.assert_allclose(vectors.d.grad.numpy(), ((x @ first) * ((dy * b) @ second.T)).sum(0), rtol=1e-12)
    merged = w + (first * d) @ (second * b)
    np.testing.assert_allclose(vectors.merged(base.weight).numpy(), merged, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_merged_is_unmerged(model, name):
    made = shaken(adapted(model(name)))
    before, state = logits(made), {n: p.numpy() for n, p in made.state_dict().items()}
    assert np.abs(before - logits(model(name))).max() > 1e-2
    made.merge()
    np.testing.assert_allclose(logits(made), before, atol=2e-5, rtol=0)
    made.unmerge()
    assert all(np.array_equal(state[n], p.numpy()) for n, p in made.state_dict().items())


@pytest.mark.parametrize("projections", [True, False])
def test_a_saved_adapter_comes_back(model, tmp_path, projections):
    made = shaken(adapted(model(), seed=5, d_initial=0.5, targets=("q_proj", "down_proj")))
    directory = saved(made, tmp_path / "a", projections=projections)
    names = set(read_tensors(directory / "adapter_model.safetensors"))
    assert ("base_model.vera_A" in names) == projections
    assert "base_model.model.model.layers.0.self_attn.q_proj.vera_lambda_d" in names
    config = json.loads((directory / "adapter_config.json").read_text())
    assert (config["r"], config["target_modules"], config["projection_prng_key"]) == (6, ["down_proj", "q_proj"], 5)
    assert config["d_initial"] == 0.5
    assert plugin.ernie_match_adapter(directory=directory)
    found = load(model(), directory)
    assert np.array_equal(logits(found), logits(made))
    assert all(p.stop_gradient for name, p in found.named_parameters() if ".vera." in name)
    again = adapted(model(), path=str(directory))
    assert np.array_equal(logits(again), logits(made))
    assert sum(not p.stop_gradient for p in again.parameters()) == 16  # d and b of two layers of each of four


def test_shapes_for_the_plan_are_those_trained(model, tmp_path):
    for name in NAMES:
        plain = model(name)
        shapes = {n: tuple(p.shape) for n, p in plain.named_parameters()}
        planned = plugin.ernie_adapter_shapes(config=plugin.Config(rank=6), shapes=shapes)
        made = adapted(plain)
        assert planned == {n: tuple(p.shape) for n, p in made.named_parameters() if not p.stop_gradient}
    directory = saved(made, tmp_path / "a")
    assert plugin.ernie_adapter_shapes(config=plugin.Config(path=str(directory)), shapes=shapes) == planned


def test_dropout_in_training_only(model):
    made, plain = shaken(adapted(model(), dropout=0.5)), shaken(adapted(model()))
    assert np.array_equal(logits(made), logits(plain))
    made.train()
    with paddle.no_grad():
        assert not np.array_equal(made(paddle.to_tensor(IDS)).numpy(), logits(plain))


def test_two_adapters_on_one_base(model, tmp_path):
    base, places, expected = logits(model()), [], []
    for seed in (1, 2):
        made = shaken(adapted(model(), seed=seed), seed=seed)
        places.append(saved(made, tmp_path / f"{seed}"))
        expected.append(logits(made))
    made = load(load(model(), places[0], "a"), places[1], "b")
    assert np.array_equal(logits(made), expected[1])
    made.set_adapter("a")
    assert np.array_equal(logits(made), expected[0])
    with made.adapter_off():
        assert np.array_equal(logits(made), base)


def test_experts_stay_as_they_are_or_are_refused(model):
    made = adapted(model("moe"))
    assert not any("experts.vera" in name for name, _ in made.named_parameters() if "shared" not in name)
    with pytest.raises(ConfigError, match="routed experts alone, which vera has no form for"):
        adapted(model("moe"), targets=("mlp.experts.up_proj",))


@pytest.mark.parametrize("axis", [0, 1])
def test_the_parts_of_two_ranks_are_the_whole(axis):
    """Divided by inputs they are summed, divided by outputs they stand side by side."""
    drawn, x = draw(5, 3, [(8, 6)]), paddle.randn([2, 8])
    whole = Vectors((8, 6), "float32", Shared(drawn, "float32"), 0.5)
    whole.b.set_value(paddle.randn([6]))
    expected = whole.apply_to(x, paddle.matmul)
    parts = []
    for index in (0, 1):
        part = Vectors((8, 6), "float32", whole.shared, 0.5)
        part.divide(axis, index, 2)
        part.b.set_value(whole.b)
        if axis:
            keep_part(part.b, [slice(index * 3, index * 3 + 3)])
        parts.append(part.apply_to(x if axis else x[:, index * 4 : index * 4 + 4], paddle.matmul))
    found = paddle.concat(parts, axis=-1) if axis else parts[0] + parts[1]
    assert np.allclose(found.numpy(), expected.numpy(), atol=1e-6)


def test_another_kind_of_adapter_on_the_model_is_refused(model, tmp_path):
    from erniecore_lora.plugin import lora

    directory = saved(shaken(adapted(model())), tmp_path / "a")
    other = lora.ernie_adapt_model(config=lora.Config(rank=2), model=model())
    with pytest.raises(UsageError, match="adapters of different kinds"):
        load(other, directory, "vera")


Q = "base_model.model.model.layers.0.self_attn.q_proj"
REFUSED = {
    "bias": ({"bias": "vera_only"}, {}, "bias"),
    "a tensor of no adapter": ({}, {"base_model.model.lm_head.weight": np.zeros((2, 2), np.float32)}, "lm_head"),
    "another rank": ({"r": 4}, {}, "expected"),
    "no rank": ({"r": "many"}, {}, "r is not usable"),
    "no matrices": ({}, {"base_model.vera_B": None}, "not there"),
    "half a layer": ({}, {f"{Q}.vera_lambda_d": None}, "has no vera_lambda_d"),
    "narrow matrices": ({}, {"base_model.vera_A": np.zeros((6, 3), np.float32)}, "vera_A"),
    "another model": ({}, {f"{Q}.vera_lambda_d".replace("layers.0", "layers.9"): np.zeros(6, np.float32),
                           f"{Q}.vera_lambda_b".replace("layers.0", "layers.9"): np.zeros(64, np.float32)}, "not linear layers"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused_when_loaded(model, tmp_path, case):
    settings, tensors, text = case
    directory = saved(adapted(model(), targets=("q_proj",)), tmp_path / "a")
    file, weights = directory / "adapter_config.json", directory / "adapter_model.safetensors"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    found = {name: array for name, array in {**read_tensors(weights), **tensors}.items() if array is not None}
    weights.unlink()
    write_tensors(weights, found)
    with pytest.raises(CheckpointError, match=text):
        load(model(), directory)
