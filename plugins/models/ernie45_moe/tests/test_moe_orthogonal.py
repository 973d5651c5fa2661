"""Router losses against float64 formulas and the orthogonal step that no optimizer sees."""

import itertools

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45_moe.losses import aux_loss, orthogonal_gradient, orthogonal_loss, z_loss
from erniecore_ernie45_moe.plugin import plugin
from erniecore_ernie45_moe.spread import Spreader


def orthogonal_64(gate_HE):
    """||G Gᵀ − I||² / E² in float64."""
    unit = gate_HE / np.linalg.norm(gate_HE, axis=0)
    gram = unit.T @ unit
    return ((gram - np.eye(len(gram))) ** 2).sum() / len(gram) ** 2


def slope_64(gate_HE, step=1e-6):
    slope = np.zeros_like(gate_HE)
    for at in np.ndindex(*gate_HE.shape):
        moved = [gate_HE.copy(), gate_HE.copy()]
        moved[0][at] += step
        moved[1][at] -= step
        slope[at] = (orthogonal_64(moved[0]) - orthogonal_64(moved[1])) / (2 * step)
    return slope


def gate(hidden=6, experts=4, seed=0):
    return np.random.default_rng(seed).standard_normal((hidden, experts))


def correlated(hidden=16, experts=8, cosine=0.5):
    """Unit vectors any two of which have this cosine."""
    gram = np.full((experts, experts), cosine) + (1 - cosine) * np.eye(experts)
    return (np.linalg.cholesky(gram) @ np.eye(experts, hidden)).T


def tensor(array):
    return paddle.to_tensor(np.asarray(array, np.float32))


def parameter(array):
    made = tensor(array)
    made.stop_gradient = False
    return made


def test_stored_values_of_two_tokens():
    logits = tensor([[2, 0, 1, -1], [2, 1, 0, -1]])
    assert float(aux_loss(paddle.nn.functional.softmax(logits), 2)) == pytest.approx(3.2237, abs=5e-5)
    assert float(z_loss(logits)) == pytest.approx(5.9545, abs=5e-5)


def test_stored_value_of_three_experts():
    assert float(orthogonal_loss(tensor([[1, 1, 0], [0, 1, 2]]))) == pytest.approx(2 / 9, abs=1e-6)


def test_aux_and_z_losses_equal_their_formulas_in_float64():
    logits = np.random.default_rng(1).standard_normal((40, 6)) * 2
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    chosen = np.argsort(-shares, axis=1)[:, :2]
    counts = np.bincount(chosen.reshape(-1), minlength=6)
    aux = 6 * (shares.mean(0) * counts / 40).sum()
    z = (np.log(np.exp(logits).sum(1)) ** 2).mean()
    assert float(aux_loss(tensor(shares), 2)) == pytest.approx(aux, rel=1e-5)
    assert float(z_loss(tensor(logits))) == pytest.approx(z, rel=1e-5)


def test_orthogonal_loss_and_gradient_equal_float64():
    array = gate()
    assert float(orthogonal_loss(tensor(array))) == pytest.approx(orthogonal_64(array), rel=1e-5)
    np.testing.assert_allclose(orthogonal_gradient(tensor(array)).numpy(), slope_64(array), atol=1e-6)


def test_gradient_is_that_of_the_loss():
    weight = parameter(gate(12, 7, seed=3))
    orthogonal_loss(weight).backward()
    np.testing.assert_allclose(orthogonal_gradient(weight).numpy(), weight.grad.numpy(), atol=1e-6)


def test_gradient_turns_vectors_without_stretching_them():
    array = gate()
    np.testing.assert_allclose((orthogonal_gradient(tensor(array)).numpy() * array).sum(0), 0, atol=1e-6)


def test_steps_bring_correlated_vectors_apart():
    weight = parameter(correlated())
    lengths = np.linalg.norm(weight.numpy(), axis=0)
    spreader, losses = Spreader(2.0), [float(orthogonal_loss(weight))]
    for _ in range(30):
        spreader.step([weight], 0.1)
        losses.append(spreader.metrics()["moe/orthogonal"])
    assert losses[0] == pytest.approx(0.25 * 7 / 8, rel=1e-4)
    assert all(b < a for a, b in itertools.pairwise(losses))
    assert losses[-1] < 0.6 * losses[0]
    np.testing.assert_allclose(np.linalg.norm(weight.numpy(), axis=0), lengths, rtol=0.02)


def test_the_step_is_rate_times_coefficient_times_gradient():
    array = gate(seed=5)
    weight = parameter(array)
    Spreader(0.25).step([weight], 0.5)
    np.testing.assert_allclose(weight.numpy(), array - 0.125 * slope_64(array), atol=1e-6)


class OtherStage:
    """Another rank has two further layers, whose loss is 0.5 and 0.25."""

    splits_layers = True

    def gather_layers(self, seen_12):
        return paddle.concat([seen_12, paddle.to_tensor([[0.75, 2.0]])])


@pytest.mark.parametrize(("here", "expected"), [([gate(seed=7)], None), ([], 0.375)])
def test_the_metric_is_that_of_all_layers(here, expected):
    spreader, weights = Spreader(1.0), [parameter(array) for array in here]
    spreader.step(weights, 0.0, OtherStage())
    if expected is None:
        expected = (float(orthogonal_loss(weights[0])) + 0.75) / 3
    assert spreader.metrics()["moe/orthogonal"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("coefficient", [0.0, 1.0])
def test_without_coefficient_or_with_a_frozen_router_nothing_moves(coefficient):
    weight = tensor(gate())  # stop_gradient
    before = weight.numpy().copy()
    spreader = Spreader(coefficient)
    spreader.step([weight] if coefficient else [parameter(before)], 1.0)
    np.testing.assert_array_equal(weight.numpy(), before)
    assert spreader.metrics() == {}


@pytest.fixture
def model(build, reference):
    config = reference.moe_config()

    def make(**settings):
        made = build(plugin, config, reference.random_weights(config), **settings)
        made.train()
        return made

    return make


def test_decoupled_loss_is_no_part_of_the_gradient(model):
    made = model(router_orthogonal_loss=0.5, router_orthogonal_decoupled=True, router_z_loss=0.1)
    ids = paddle.to_tensor(np.random.default_rng(0).integers(0, 61, (2, 8)))
    assert set(made.features(ids).auxiliary) == {"z"}


def test_the_model_moves_all_its_routers_with_the_step_rate(model):
    made = model(router_orthogonal_loss=0.5, router_orthogonal_decoupled=True, bias_update_rate=0.0)
    before = [block.gate.weight.numpy().astype(np.float64) for block in made.blocks()]
    made.after_step(rate=0.1)
    for block, old in zip(made.blocks(), before, strict=True):
        np.testing.assert_allclose(block.gate.weight.numpy(), old - 0.05 * slope_64(old), atol=1e-6)
    assert made.router_metrics()["moe/orthogonal"] > 0


def test_other_weights_stay(model):
    made = model(router_orthogonal_loss=0.5, router_orthogonal_decoupled=True)
    before = {name: p.numpy().copy() for name, p in made.named_parameters() if "gate.weight" not in name}
    made.after_step(rate=0.1)
    for name, p in made.named_parameters():
        if name in before:
            np.testing.assert_array_equal(p.numpy(), before[name])


def test_coupled_is_the_default(model):
    made = model(router_orthogonal_loss=0.5)
    before = [block.gate.weight.numpy() for block in made.blocks()]
    made.after_step(rate=0.1)
    for block, old in zip(made.blocks(), before, strict=True):
        np.testing.assert_array_equal(block.gate.weight.numpy(), old)
