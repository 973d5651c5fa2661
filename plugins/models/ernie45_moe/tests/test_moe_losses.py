"""Router losses and the bias update against the stored derivation, and their closed-form points."""

import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45_moe.balance import moved_bias
from erniecore_ernie45_moe.losses import (
    aux_loss,
    orthogonal_loss,
    router_entropy,
    sequence_loss,
    similarity_loss,
    z_loss,
)
from erniecore_ernie45_moe.plugin import plugin

LAYERS = ("layer1", "layer2", "layer3")


@pytest.fixture(scope="module")
def derived(models_dir):
    return json.loads((models_dir / "moe_router_losses.derived.json").read_text())


@pytest.fixture(scope="module")
def moe(golden):
    return golden("moe")


@pytest.mark.parametrize("layer", LAYERS)
def test_losses_of_a_layer(layer, moe, derived):
    expected = derived["moe_batch_a"][layer]
    logits = paddle.to_tensor(moe.tensors[f"a.router.{layer}.logits"])
    gate = paddle.to_tensor(np.ascontiguousarray(moe.weights[f"model.layers.{layer[-1]}.mlp.gate.weight"].T))
    scores = paddle.nn.functional.softmax(logits)
    assert float(aux_loss(scores, moe.config["moe_k"])) == pytest.approx(expected["aux"], rel=1e-5)
    assert float(z_loss(logits)) == pytest.approx(expected["z"], rel=1e-5)
    assert float(orthogonal_loss(gate)) == pytest.approx(expected["orthogonal"], rel=1e-5)


@pytest.mark.parametrize("layer", LAYERS)
def test_bias_update_of_a_layer(layer, derived):
    expected = derived["moe_batch_a"][layer]
    bias = paddle.to_tensor(expected["bias_before"], dtype="float64").unsqueeze(0)
    moved = moved_bias(bias, paddle.to_tensor(expected["expert_usage"], dtype="float64"), 0.001)
    np.testing.assert_allclose(moved.numpy()[0], expected["bias_after_update_lr_0.001"], atol=1e-12)


def training_pass(moe, build, **settings):
    model = build(plugin, moe.config, moe.weights, **settings)
    model.train()
    return model, model.features(paddle.to_tensor(moe.tensors["a.input_ids"]))


def test_the_model_sums_its_losses_over_layers(moe, build, derived):
    c = derived["coefficients"]
    names = {"router_aux_loss": c["aux"], "router_z_loss": c["z"], "router_orthogonal_loss": c["orthogonal"]}
    _, features = training_pass(moe, build, **names)
    assert set(features.auxiliary) == {"aux", "z", "orthogonal"}
    total = float(sum(features.auxiliary.values()))
    assert total == pytest.approx(derived["moe_batch_a"]["sum_over_layers"], rel=1e-5)


def test_the_model_moves_its_biases_after_a_step(moe, build, derived):
    model, _ = training_pass(moe, build)
    model.after_step()
    for block, layer in zip(model.blocks(), LAYERS, strict=True):
        expected = derived["moe_batch_a"][layer]["bias_after_update_lr_0.001"]
        np.testing.assert_allclose(block.moe_statics.e_score_correction_bias.numpy()[0], expected, atol=1e-7)


def test_the_loss_of_rows_is_the_mean_of_their_own_divided_by_k():
    """Stored value of two tokens; rows that are uneven by themselves but even together, and padding."""
    logits = paddle.to_tensor([[2.0, 0, 1, -1], [2, 1, 0, -1]])
    scores = paddle.nn.functional.softmax(logits)
    assert float(sequence_loss(scores, 2, 1)) == pytest.approx(3.2237 / 2, abs=3e-5)
    eager = paddle.to_tensor([[0.97, 0.01, 0.01, 0.01], [0.01, 0.97, 0.01, 0.01]])
    rows = eager.repeat_interleave(3, axis=0)  # row 0 wants expert 0 alone, row 1 expert 1
    assert float(aux_loss(rows, 1)) == pytest.approx(4 * 0.49, rel=1e-5)
    assert float(sequence_loss(rows, 1, 2)) == pytest.approx(4 * 0.97, rel=1e-5)
    even = paddle.full([6, 4], 0.25)
    assert float(sequence_loss(even, 2, 3)) == pytest.approx(1.0, rel=1e-6)
    real = paddle.to_tensor([True, True, False, True, True, True])
    other = rows.clone()
    other[2] = paddle.to_tensor([0.01, 0.01, 0.01, 0.97])
    assert float(sequence_loss(other, 1, 2, real)) == pytest.approx(4 * 0.97, rel=1e-5)


def test_the_similarity_loss_is_the_distance_of_the_raw_gram_matrix_from_one():
    gate = paddle.to_tensor([[1.0, 1, 0], [0, 1, 2]])  # experts [1, 0], [1, 1], [0, 2]
    assert float(similarity_loss(gate)) == pytest.approx(0 + 1 + 3 + 2 * (1 + 0 + 2))
    turned = paddle.to_tensor(np.linalg.qr(np.random.default_rng(0).normal(size=(6, 4)))[0].astype("float32"))
    assert float(similarity_loss(turned)) == pytest.approx(0, abs=1e-5)
    assert float(similarity_loss(2 * turned)) == pytest.approx(4 * 3, rel=1e-5), "lengths count"
    assert float(orthogonal_loss(2 * turned)) == pytest.approx(0, abs=1e-6), "which it does not here"


def test_losses_of_rows_and_similarity_are_settings(moe, build):
    model, features = training_pass(moe, build, router_sequence_loss=0.5, router_similarity_loss=0.25)
    assert set(features.auxiliary) == {"sequence", "similarity"}
    gates = [block.gate.weight for block in model.blocks()]
    expected = 0.25 * sum(float(similarity_loss(gate)) for gate in gates)
    assert float(features.auxiliary["similarity"]) == pytest.approx(expected, rel=1e-5)
    assert 0.5 * len(gates) <= float(features.auxiliary["sequence"]) < 0.5 * len(gates) * 8


def test_losses_without_a_coefficient_are_not_computed(moe, build):
    assert training_pass(moe, build)[1].auxiliary == {}
    assert set(training_pass(moe, build, router_z_loss=0.5)[1].auxiliary) == {"z"}


def test_losses_train_the_router(moe, build):
    model, features = training_pass(moe, build, router_aux_loss=0.01)
    sum(features.auxiliary.values()).backward()
    for block in model.blocks():
        assert np.abs(block.gate.weight.grad.numpy()).max() > 0
    assert model.model.layers[3].mlp.experts.up_proj.grad is None


def test_recomputed_losses_have_the_same_gradient(moe, build):
    gradients = []
    for granularity in ("none", "full"):
        model = build(plugin, moe.config, moe.weights, router_aux_loss=1.0, router_z_loss=0.1)
        model.train()
        model.set_recompute(granularity)
        features = model.features(paddle.to_tensor(moe.tensors["a.input_ids"]))
        (sum(features.auxiliary.values()) + features.hidden.sum()).backward()
        gradients.append([block.gate.weight.grad.numpy() for block in model.blocks()])
    for plain, recomputed in zip(*gradients, strict=True):
        np.testing.assert_allclose(recomputed, plain, atol=1e-6, rtol=1e-5)


def test_an_even_router_has_the_loss_k_and_full_entropy():
    scores = paddle.full([8, 4], 0.25) + paddle.tile(paddle.eye(4), [2, 1]) * 1e-6
    assert float(aux_loss(scores, 1)) == pytest.approx(1.0, abs=1e-4)
    assert float(router_entropy(scores)) == pytest.approx(1.0, abs=1e-4)


def test_orthogonal_expert_vectors_cost_nothing_whatever_their_length():
    assert float(orthogonal_loss(paddle.eye(6)[:, :4] * 3.0)) == pytest.approx(0.0, abs=1e-10)


def test_padding_does_not_count():
    rng = np.random.default_rng(0)
    logits = paddle.to_tensor(rng.standard_normal((9, 4)).astype(np.float32))
    real = paddle.to_tensor(rng.random(9) < 0.6)
    kept = logits[real]
    for measure in (of_scores(aux_loss, 2), z_loss, of_scores(router_entropy)):
        assert float(measure(logits, real)) == pytest.approx(float(measure(kept, None)), rel=1e-5)


def of_scores(measure, *options):
    return lambda logits, real: measure(logits.exp(), *options, real)
