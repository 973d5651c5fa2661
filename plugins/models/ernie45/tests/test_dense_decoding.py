"""Cached decoding without positions or mask, and what recomputation does."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45.plugin import plugin

pytestmark = pytest.mark.usefixtures("each_kernel")


@pytest.fixture
def model(build, reference):
    config = reference.config()
    return build(plugin, config, reference.random_weights(config))


@pytest.mark.parametrize("cuts", [(5,), (1, 2, 3, 4, 5, 6, 7), (3, 4)])
def test_pieces_with_a_cache_equal_the_whole(cuts, model, cache):
    model.eval()
    ids = np.random.default_rng(0).integers(0, 61, (2, 8))
    parts = [model(paddle.to_tensor(part), cache=cache).numpy() for part in np.split(ids, cuts, axis=1)]
    whole = model(paddle.to_tensor(ids)).numpy()
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("granularity", "passes"), [("none", 1), ("core-attention", 1), ("attention", 2), ("full", 2)])
def test_what_is_recomputed_runs_again_in_the_backward_pass(granularity, passes, model):
    calls = []
    model.model.layers[0].self_attn.register_forward_pre_hook(lambda layer, args: calls.append(1) and None)
    model.train()
    model.set_recompute(granularity)
    model(paddle.to_tensor([[1, 2, 3]])).sum().backward()
    assert len(calls) == passes


def test_nothing_is_recomputed_in_evaluation(model):
    model.set_recompute("full")
    model.eval()
    assert model.make_context(paddle.to_tensor([[1]]), cache=None).recompute == "none"


def test_an_unknown_granularity_is_refused(model):
    with pytest.raises(ValueError, match="core-attention"):
        model.set_recompute("some")
