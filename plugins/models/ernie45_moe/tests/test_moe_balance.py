"""Counting assignments and moving biases over micro-batches, under recomputation, and for frozen routers."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45_moe.balance import Balancer, Measured, moved_bias
from erniecore_ernie45_moe.plugin import plugin


@pytest.fixture
def config(reference):
    return reference.moe_config()


def biases(model):
    return np.stack([block.moe_statics.e_score_correction_bias.numpy()[0] for block in model.blocks()])


def train_pass(model, seed, backward=True, **masks):
    ids = np.random.default_rng(seed).integers(0, 61, (2, 16))
    features = model.features(paddle.to_tensor(ids), **masks)
    if backward:
        model.logits(features.hidden).mean().backward()


def moved(build, config, weights, granularity="none", seeds=(1,), **settings):
    model = build(plugin, config, weights, **settings)
    before = biases(model)
    model.train()
    model.set_recompute(granularity)
    for seed in seeds:
        train_pass(model, seed)
    model.after_step()
    return biases(model) - before


@pytest.fixture
def weights(config, reference):
    return reference.random_weights(config)


def test_overloaded_experts_go_down_and_others_up():
    balancer, bias = Balancer(0.5), paddle.zeros([1, 4])
    balancer.observe({0: Measured(paddle.to_tensor([[8.0, 2.0, 2.0, 4.0]]), paddle.to_tensor(0.0), {})})
    balancer.step({0: (bias, [True])})
    np.testing.assert_array_equal(bias.numpy(), [[-0.5, 0.5, 0.5, 0.0]])


def test_stored_update_of_four_experts():
    """An expert with exactly the mean load stays."""
    moved = moved_bias(paddle.zeros([1, 4]), paddle.to_tensor([[10.0, 30.0, 20.0, 20.0]]), 1e-3)
    np.testing.assert_array_equal(moved.numpy(), np.float32([[1e-3, -1e-3, 0, 0]]))


def test_loads_add_up_over_micro_batches_and_start_anew_after_a_step():
    balancer, bias = Balancer(1.0), paddle.zeros([1, 2])
    for load in ([4.0, 0.0], [0.0, 6.0]):
        balancer.observe({0: Measured(paddle.to_tensor([load]), paddle.to_tensor(0.0), {})})
    balancer.step({0: (bias, [True])})
    np.testing.assert_array_equal(bias.numpy(), [[1.0, -1.0]])
    balancer.step({0: (bias, [True])})
    np.testing.assert_array_equal(bias.numpy(), [[1.0, -1.0]])


def test_each_router_of_a_layer_has_its_own_mean_and_a_frozen_one_stays():
    balancer, bias = Balancer(1.0), paddle.zeros([3, 2])
    load = paddle.to_tensor([[4.0, 0.0], [100.0, 300.0], [0.0, 4.0]])
    balancer.observe({0: Measured(load, paddle.to_tensor(0.0), {})})
    balancer.step({0: (bias, [True, True, False])})
    np.testing.assert_array_equal(bias.numpy(), [[-1.0, 1.0], [1.0, -1.0], [0.0, 0.0]])


class OtherRank:
    """Another rank's tokens all go to the second expert; all layers are here."""

    splits_layers = False

    def sum_tokens(self, loads):
        return loads + paddle.to_tensor([[0.0, 9.0]])


def test_loads_of_other_ranks_are_asked_for():
    balancer, bias = Balancer(1.0), paddle.zeros([1, 2])
    balancer.reduction = OtherRank()
    balancer.observe({0: Measured(paddle.to_tensor([[4.0, 0.0]]), paddle.to_tensor(0.0), {})})
    balancer.step({0: (bias, [True])})
    np.testing.assert_array_equal(bias.numpy(), [[1.0, -1.0]])


@pytest.mark.parametrize("granularity", ["full", "attention"])
def test_recomputation_counts_nothing_twice(granularity, build, config, weights):
    model = build(plugin, config, weights)
    model.train()
    model.set_recompute(granularity)
    train_pass(model, 1)
    loads = model.balancer.loads.numpy()
    np.testing.assert_array_equal(loads.sum(axis=-1)[:, 0], [2 * 16 * config["moe_k"]] * 2)


def test_the_update_does_not_depend_on_recomputation(build, config, weights):
    plain = moved(build, config, weights, seeds=(1, 2))
    np.testing.assert_array_equal(moved(build, config, weights, "full", seeds=(1, 2)), plain)
    assert np.abs(plain).max() == pytest.approx(1e-3, rel=1e-3)


def test_the_rate_is_a_setting(build, config, weights):
    assert np.abs(moved(build, config, weights, bias_update_rate=0.25)).max() == pytest.approx(0.25, rel=1e-5)
    assert np.abs(moved(build, config, weights, bias_update_rate=0.0)).max() == 0


def test_models_without_aux_free_balancing_keep_their_biases(build, config, weights):
    assert np.abs(moved(build, {**config, "moe_use_aux_free": False}, weights)).max() == 0


def test_the_bias_of_a_frozen_router_stays_and_the_others_move(build, config, weights):
    model = build(plugin, config, weights)
    model.train()
    first, _ = model.blocks()
    first.gate.weight.stop_gradient = True
    before = biases(model)
    train_pass(model, 1)
    model.after_step()
    change = np.abs(biases(model) - before).max(axis=1)
    assert change[0] == 0
    assert change[1] > 0


def test_evaluation_and_no_grad_count_nothing(build, config, weights):
    model = build(plugin, config, weights)
    before = biases(model)
    model.eval()
    train_pass(model, 1, backward=False)
    model.train()
    with paddle.no_grad():
        train_pass(model, 1, backward=False)
    model.after_step()
    np.testing.assert_array_equal(biases(model), before)
    assert model.router_metrics() == {}


def test_padding_is_not_counted(build, config, weights):
    model = build(plugin, config, weights)
    model.train()
    mask = paddle.to_tensor(np.repeat([[0] * 6 + [1] * 10], 2, axis=0))
    train_pass(model, 1, attention_mask=mask)
    np.testing.assert_array_equal(model.balancer.loads.numpy().sum(axis=-1)[:, 0], [2 * 10 * config["moe_k"]] * 2)


def test_metrics_of_the_last_step(build, config, weights):
    class Run:
        model = build(plugin, config, weights)

    Run.model.train()
    train_pass(Run.model, 1)
    loads = Run.model.balancer.loads.numpy()
    Run.model.after_step()
    metrics = plugin.ernie_collect_metrics(run=Run)
    assert metrics["moe/max_load"] == pytest.approx((loads.max(-1) / loads.mean(-1)).max(), rel=1e-6)
    assert 0 < metrics["moe/router_entropy"] < 1


def test_a_model_of_another_kind_has_no_router_metrics():
    class Run:
        model = object()

    assert plugin.ernie_collect_metrics(run=Run) == {}


def test_the_bias_is_state_but_no_optimizer_touches_it(build, config):
    model = build(plugin, config)
    name = "model.layers.1.mlp.moe_statics.e_score_correction_bias"
    assert name in model.state_dict()
    assert dict(model.named_parameters())[name].stop_gradient
    assert np.abs(biases(model)).max() == 0
