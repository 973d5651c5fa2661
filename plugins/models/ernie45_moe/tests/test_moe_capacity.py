"""Capacity as a setting of the model: dropless by default, its own factor for training and evaluation."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45_moe.plugin import plugin


@pytest.fixture
def outputs(build, reference):
    config = reference.moe_config()
    weights = reference.random_weights(config)
    ids = paddle.to_tensor(np.random.default_rng(0).integers(0, 61, (2, 16)))

    def run(train=False, **settings):
        model = build(plugin, config, weights, **settings)
        model.train() if train else model.eval()
        return model(ids).numpy()

    return run


def test_a_capacity_of_all_tokens_drops_nothing(outputs):
    np.testing.assert_allclose(outputs(capacity=(5.0, 5.0, 5.0)), outputs(), atol=1e-5)


def test_a_small_capacity_changes_the_result(outputs):
    assert np.abs(outputs(capacity=(5.0, 0.5, 5.0)) - outputs()).max() > 1e-3


def test_training_has_its_own_factor(outputs):
    np.testing.assert_allclose(outputs(train=True, capacity=(5.0, 0.5, 5.0)), outputs(), atol=1e-5)
    assert np.abs(outputs(train=True, capacity=(0.5, 5.0, 5.0)) - outputs()).max() > 1e-3


def test_few_tokens_in_evaluation_have_their_own_factor(build, reference):
    config = reference.moe_config()
    model = build(plugin, config, reference.random_weights(config), capacity=(5.0, 0.01, 5.0))
    dropless = build(plugin, config, reference.random_weights(config))
    model.eval()
    dropless.eval()
    few = paddle.to_tensor([[1, 2, 3, 4]])
    np.testing.assert_allclose(model(few).numpy(), dropless(few).numpy(), atol=1e-5)


def test_a_token_that_every_expert_dropped_keeps_its_stream_finite(outputs):
    assert np.isfinite(outputs(capacity=(0.01, 0.01, 0.01))).all()
