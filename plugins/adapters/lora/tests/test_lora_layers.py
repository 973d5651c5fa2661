"""What adapted layers compute, on real models: stacked experts, DoRA, PiSSA, several adapters, what is trained."""

import copy

import numpy as np
import paddle  # noqa: TID253
import pytest
from adapter_checks import IDS, logits
from erniecore_lora import adapt, plugin
from erniecore_lora.build import load
from erniecore_lora.layers import LoraExperts
from erniecore_lora.save import save

from erniecore.api import UsageError


def adapted(model, adapter=plugin.lora, seed=1, **settings):
    paddle.seed(seed)
    return adapter.ernie_adapt_model(config=adapter.Config(**settings), model=model)


def shaken(model, seed=1, size=0.05):
    """With updates that are far from zero."""
    paddle.seed(seed)
    for low in adapt.updates(model, adapt.active(model)).values():
        low.B.set_value(low.B + size * paddle.randn(low.B.shape))
        if low.magnitude is not None:
            low.magnitude.set_value(low.magnitude * (1 + 0.1 * paddle.rand(low.magnitude.shape)))
    return model


def learn(model, steps=1, rate=0.0):
    """Gradients of the last of some steps of descent."""
    model.train()
    for _ in range(steps):
        features = model.features(paddle.to_tensor(IDS))
        hidden = [features.hidden, *features.mtp_hidden]
        loss = sum(paddle.nn.functional.cross_entropy(model.logits(h), paddle.to_tensor(IDS)) for h in hidden)
        found = dict(zip(*_grads(model, loss), strict=True))
        with paddle.no_grad():
            for name, parameter in model.named_parameters():
                if name in found:
                    parameter.set_value(parameter - rate * parameter.grad)
                    parameter.clear_gradient(False)
    return found


def _grads(model, loss):
    loss.backward()
    trained = [(n, p) for n, p in model.named_parameters() if not p.stop_gradient and p.grad is not None]
    return [n for n, _ in trained], [p.grad.numpy() for _, p in trained]


@pytest.mark.parametrize("name", ["dense", "moe"])
@pytest.mark.parametrize("init", ["kaiming", "gaussian", "pissa"])
@pytest.mark.parametrize("adapter", [plugin.lora, plugin.dora], ids=lambda p: p.name)
def test_starts_as_the_base(model, name, init, adapter):
    before = logits(model(name))
    np.testing.assert_allclose(logits(adapted(model(name), adapter, init=init, rank=4)), before, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["dense", "moe"])
@pytest.mark.parametrize("init", ["kaiming", "pissa"])
@pytest.mark.parametrize("adapter", [plugin.lora, plugin.rslora, plugin.dora], ids=lambda p: p.name)
def test_merged_is_unmerged(model, name, init, adapter):
    made = shaken(adapted(model(name), adapter, init=init, rank=4))
    logits_before, state = logits(made), {n: p.numpy() for n, p in made.state_dict().items()}
    assert np.abs(logits_before - logits(model(name))).max() > 1e-2
    made.merge()
    np.testing.assert_allclose(logits(made), logits_before, atol=2e-5, rtol=0)
    made.unmerge()
    assert all(np.array_equal(state[n], p.numpy()) for n, p in made.state_dict().items())


def test_experts_are_adapted_in_one_stack(model):
    made = adapted(model("moe"), rank=2)
    experts = [layer for layer in made.sublayers() if isinstance(layer, LoraExperts)]
    assert experts
    low = dict(experts[0].updates("default"))["up_proj"]
    assert (low.A.shape, low.B.shape) == ([8, 64, 2], [8, 2, 24])


@pytest.mark.parametrize("adapter", [plugin.lora, plugin.dora], ids=lambda p: p.name)
def test_gradients_beside_are_those_of_effective_weights(model, adapter):
    """dL/dA = s (dL/dW') Bᵀ and dL/dB = s Aᵀ (dL/dW') for W' = W + s A B, computed by the merged base."""
    made = shaken(adapted(model("moe"), adapter, rank=2))
    found, lows = learn(made), {target.name: low for target, low in adapt.updates(made, "default").items()}
    gains = {name: gain_of(made, name, low) for name, low in lows.items()}
    made.merge()
    merged = made.unload()
    for name, parameter in merged.named_parameters():
        parameter.stop_gradient = "e_score" in name
    reference = learn(merged)
    for name in ("model.layers.1.mlp.experts.up_proj", "model.layers.2.mlp.experts.down_proj"):
        low, dw = lows[name], reference[name] * gains[name]
        key = ".lora.default.".join(name.rsplit(".", 1))
        a, b = (factor.numpy().swapaxes(1, 2) * low.scale for factor in (low.A, low.B))
        np.testing.assert_allclose(found[f"{key}.A"], dw @ b, atol=3e-6, rtol=1e-3)
        np.testing.assert_allclose(found[f"{key}.B"], a @ dw, atol=3e-6, rtol=1e-3)


def gain_of(model, name, low):
    """DoRA's factor per output, in front of which the effective weight is W + s A B."""
    if low.magnitude is None:
        return 1.0
    layer, _, part = name.rpartition(".") if ".experts." in name else (name, "", "weight")
    return low.gain(getattr(adapt.wrapped(model)[layer], part)).unsqueeze(-2).numpy()


@pytest.mark.parametrize(("name", "settings"), [("moe", {}), ("moe_mtp", {"mtp": True})])
def test_only_the_adapter_is_trained_and_all_of_it(model, name, settings):
    made = adapted(model(name, **settings), rank=2)
    base = {n: p.numpy() for n, p in made.named_parameters() if ".lora." not in n}
    found = learn(made, steps=2, rate=0.5)
    made.after_step()
    assert {n for n, p in made.named_parameters() if not p.stop_gradient} == set(found)
    assert all(".lora." in n for n in found)
    assert all(np.array_equal(base[n], p.numpy()) for n, p in made.named_parameters() if n in base)
    starved = [n for n, g in found.items() if not np.any(g)]
    assert not starved
    assert any("mtp_block" in n for n in found) == bool(settings)


def test_shapes_for_the_plan_are_those_trained(model):
    for name in ("dense", "moe"):
        plain = model(name)
        shapes = {n: tuple(p.shape) for n, p in plain.named_parameters()}
        config = plugin.dora.Config(rank=3)
        planned = plugin.dora.ernie_adapter_shapes(config=config, shapes=shapes)
        made = adapted(plain, plugin.dora, rank=3)
        assert planned == {n: tuple(p.shape) for n, p in made.named_parameters() if not p.stop_gradient}


def test_learning_rate_of_b(model):
    made = adapted(model(), plugin.lora_plus, ratio=4)
    assert made.lr_factors == {"*.B": 4}
    assert adapted(model()).lr_factors == {}


def test_dropout_in_training_only(model):
    made = shaken(adapted(model(), dropout=0.5))
    plain = shaken(adapted(model()))
    assert np.array_equal(logits(made), logits(plain))
    made.train()
    with paddle.no_grad():
        assert not np.array_equal(made(paddle.to_tensor(IDS)).numpy(), logits(plain))


# ------------------------------------------------------------------------------------------------- several adapters


def saved(model, directory, seed, **settings):
    made = shaken(adapted(model, seed=seed, **settings), seed=seed)
    directory.mkdir()
    save(made, directory)
    return logits(made)


def test_two_adapters_on_one_base(model, tmp_path):
    base = logits(model())
    first = saved(model(), tmp_path / "a", 1, rank=2)
    second = saved(model(), tmp_path / "b", 2, rank=5, targets=("attention",))
    made = load(load(model(), tmp_path / "a", "a"), tmp_path / "b", "b")
    assert adapt.adapters(made) == ["a", "b"]
    assert adapt.active(made) == "b"
    np.testing.assert_allclose(logits(made), second, atol=1e-6)
    adapt.switch(made, "a")
    np.testing.assert_allclose(logits(made), first, atol=1e-6)
    with made.adapter_off():
        assert np.array_equal(logits(made), base)
    np.testing.assert_allclose(logits(made), first, atol=1e-6)
    made.merge()
    with pytest.raises(UsageError, match="merged into the weights"):
        adapt.switch(made, "b")
    with pytest.raises(UsageError, match="no adapter of that name"):
        adapt.switch(made, "c")


def test_training_goes_on_from_a_saved_adapter(model, tmp_path):
    before = saved(model(), tmp_path / "a", 1, rank=2, alpha=3)
    made = adapted(model(), path=str(tmp_path / "a"))
    np.testing.assert_allclose(logits(made), before, atol=1e-6)
    assert all(".lora." in n for n in learn(made, steps=1))
    assert {low.size.rank for low in adapt.updates(made, "default").values()} == {2}


def test_copy_is_independent(model):
    made = shaken(adapted(model()))
    other = copy.deepcopy(made)
    before = logits(other)
    shaken(made, seed=9)
    assert np.array_equal(logits(other), before)
    other.merge()
    assert not adapt.wrapped(made)["model.layers.0.self_attn.q_proj"].kept


def test_reference_shares_the_base_and_keeps_the_start(model):
    from erniecore.engine.models.reference_model import make_reference

    made = shaken(adapted(model("moe"), rank=2))
    before, reference = logits(made), make_reference(made, "copy", adapted=True)
    learn(made, steps=1, rate=0.5)
    assert np.abs(logits(made) - before).max() > 1e-3
    assert np.array_equal(logits(reference), before)
    own = {id(p) for p in made.parameters()}
    assert all((id(p) in own) == (".lora." not in n) for n, p in reference.named_parameters())
    assert all(p.stop_gradient for p in reference.parameters())
    assert any(not p.stop_gradient for p in made.parameters())


@pytest.mark.parametrize("granularity", ["full", "attention", "core-attention"])
def test_recomputing_changes_nothing(model, granularity):
    made = shaken(adapted(model("moe"), rank=2))
    plain = learn(made)
    made.set_recompute(granularity)
    assert all(np.array_equal(plain[n], g) for n, g in learn(made).items())


def test_adapters_are_named_and_chosen_by_the_model(model, tmp_path):
    made = model()
    for name, seed in (("a", 1), ("b", 2)):
        saved(model(), tmp_path / name, seed, rank=2)
        made = plugin.lora.ernie_load_adapter(model=made, directory=tmp_path / name, name=name)
    assert made.adapter_names() == ["a", "b"]
    second = logits(made)
    made.set_adapter("a")
    assert np.abs(logits(made) - second).max() > 1e-3
    made.set_adapter(None)
    assert np.array_equal(logits(made), logits(model()))
    with pytest.raises(UsageError, match="needs a new name"):
        plugin.lora.ernie_load_adapter(model=made, directory=tmp_path / "a", name="a")


# --------------------------------------------------------------------------------------------------------- pissa


def test_pissa_trains_the_largest_singular_values_and_holds_the_rest(model):
    made = adapted(model(), init="pissa", rank=4, targets=("q_proj", "down_proj"))
    for target, low in adapt.updates(made, "default").items():
        layer = adapt.wrapped(made)[target.layer]
        weight = layer.weight.numpy().astype("float64")
        trained = low.scale * (low.A.numpy().astype("float64") @ low.B.numpy().astype("float64"))
        u, s, vt = np.linalg.svd(weight, full_matrices=False)
        np.testing.assert_allclose(trained, (u[:, :4] * s[:4]) @ vt[:4], atol=1e-5)
        residual = np.linalg.svd(weight - trained, compute_uv=False)
        np.testing.assert_allclose(residual[: len(s) - 4], s[4:], atol=1e-5)


# --------------------------------------------------------------------------------------------------- rslora_plus


def test_rslora_with_a_ratio_is_rslora_plus(model):
    made = adapted(model(), plugin.rslora, rank=4, ratio=4.0)
    assert made.lr_factors == {"*.B": 4.0}
    assert {low.scale for low in adapt.updates(made, "default").values()} == {4.0 / 4**0.5}
    assert adapted(model(), plugin.rslora, rank=4).lr_factors == {}
