"""The mixture-of-experts model against the reference run stored in tests/fixtures/models/moe."""

import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45_moe.plugin import plugin
from erniecore_ernie45_moe.router import route

pytestmark = pytest.mark.usefixtures("each_kernel")

BATCHES = ("a", "left_pad", "right_pad", "packed", "strided")


@pytest.fixture(scope="module")
def moe(golden):
    return golden("moe")


@pytest.fixture
def model(moe, build):
    model = build(plugin, moe.config, moe.weights)
    model.eval()
    return model


def by_expert(experts, weights):
    """The same assignments in the order of their experts."""
    order = np.argsort(experts, axis=1)
    return np.take_along_axis(experts, order, axis=1), np.take_along_axis(weights, order, axis=1)


@pytest.mark.parametrize("batch", BATCHES)
def test_logits(batch, moe, model):
    found = model(**moe.inputs(batch)).numpy() * moe.real_tokens(batch)[..., None]
    np.testing.assert_allclose(found, moe.tensors[f"{batch}.logits"], atol=2e-5, rtol=0)


def test_config_as_on_the_hub_builds_the_same_model(moe, model, build):
    hub = json.loads((moe.directory / "config.hub_style.json").read_text())
    other = build(plugin, hub, moe.weights)
    other.eval()
    batch = moe.inputs("strided")
    np.testing.assert_array_equal(other(**batch).numpy(), model(**batch).numpy())


def test_hidden_states(moe, model):
    moe.check_hidden_states(model, "a")


@pytest.mark.parametrize("batch", BATCHES)
def test_routing(batch, moe, model):
    seen = []
    for block in model.blocks():
        route = block.route

        def spy(x_TH, route=route):
            seen.append(route(x_TH))
            return seen[-1]

        block.route = spy
    model(**moe.inputs(batch))
    real = moe.real_tokens(batch).reshape(-1)
    assert len(seen) == 3
    for layer, routing in enumerate(seen, start=1):
        golden = {
            name: moe.tensors[f"{batch}.router.layer{layer}.{name}"][real] for name in ("logits", "selected", "weights")
        }
        np.testing.assert_allclose(routing.logits.numpy()[real], golden["logits"], atol=2e-5, rtol=0)
        experts, weights = by_expert(routing.experts.numpy()[real], routing.weights.numpy()[real])
        golden_experts, golden_weights = by_expert(golden["selected"], golden["weights"])
        np.testing.assert_array_equal(experts, golden_experts)
        # The stream before the router differs by rounding; the router alone is compared more tightly below.
        np.testing.assert_allclose(weights, golden_weights, atol=2e-6, rtol=0)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("layer", [1, 2, 3])
def test_selection_and_weights_of_stored_logits(batch, layer, moe):
    golden = {name: moe.tensors[f"{batch}.router.layer{layer}.{name}"] for name in ("logits", "selected", "weights")}
    bias = moe.weights[f"model.layers.{layer}.mlp.moe_statics.e_score_correction_bias"]
    identity = paddle.eye(golden["logits"].shape[1])
    routing = route(*map(paddle.to_tensor, (golden["logits"], identity, bias)), num_selected=2, norm_min=1e-12)
    experts, weights = by_expert(routing.experts.numpy(), routing.weights.numpy())
    golden_experts, golden_weights = by_expert(golden["selected"], golden["weights"])
    np.testing.assert_array_equal(experts, golden_experts)
    np.testing.assert_allclose(weights, golden_weights, atol=1e-6, rtol=0)


def test_loss(moe, model):
    losses, count = moe.token_losses(model, "a")
    np.testing.assert_allclose(losses.numpy(), moe.tensors["a.token_loss"].reshape(-1), atol=2e-5, rtol=0)
    assert float(losses.sum()) / count == pytest.approx(moe.numbers["loss"]["a"], rel=1e-6)


@pytest.mark.parametrize("granularity", ["none", "full", "attention", "core-attention"])
def test_gradients(granularity, moe, model, public_gradients):
    model.train()
    model.set_recompute(granularity)
    losses, count = moe.token_losses(model, "a")
    (losses.sum() / count).backward()
    found = public_gradients(plugin, model)
    moe.check_gradients(found)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("case", ["gen", "gen1"])
def test_greedy_answers(case, cached, moe, model, greedy, cache):
    mask = moe.tensors.get(f"{case}.attention_mask")
    tokens, logits = greedy(model, moe.tensors[f"{case}.input_ids"], 16, mask, cache if cached else None)
    np.testing.assert_array_equal(tokens, moe.tensors[f"{case}.new_tokens"])
    np.testing.assert_allclose(logits, moe.tensors[f"{case}.logits"], atol=2e-5, rtol=0)
