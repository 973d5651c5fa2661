"""The dense model against the reference run stored in tests/fixtures/models/dense."""

import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45.plugin import plugin

from erniecore.api import ops

pytestmark = pytest.mark.usefixtures("each_kernel")

BATCHES = ("a", "left_pad", "right_pad", "packed", "strided")


@pytest.fixture(scope="module")
def dense(golden):
    return golden("dense")


@pytest.fixture
def model(dense, build):
    model = build(plugin, dense.config, dense.weights)
    model.eval()
    return model


def masked(found, dense, batch):
    mask = dense.tensors.get(f"{batch}.attention_mask")
    return found if mask is None else found * mask[..., None]


@pytest.mark.parametrize("batch", BATCHES)
def test_logits(batch, dense, model):
    found = masked(model(**dense.inputs(batch)).numpy(), dense, batch)
    np.testing.assert_allclose(found, dense.tensors[f"{batch}.logits"], atol=2e-5, rtol=0)


def test_config_as_on_the_hub_builds_the_same_model(dense, model, build):
    hub = json.loads((dense.directory / "config.hub_style.json").read_text())
    other = build(plugin, hub, dense.weights)
    other.eval()
    batch = dense.inputs("strided")
    np.testing.assert_array_equal(other(**batch).numpy(), model(**batch).numpy())


def test_hidden_states(dense, model):
    dense.check_hidden_states(model, "a")


@pytest.mark.parametrize("which", ["q", "k"])
def test_rotary_positions(which, dense, model):
    before = paddle.to_tensor(dense.tensors[f"a.layer0.{which}_in"]).transpose([0, 2, 1, 3])
    positions = paddle.arange(before.shape[1], dtype="int64").unsqueeze(0).expand(before.shape[:2])
    cos, sin = ops.rope_tables(positions, model.arch.head_dim, model.arch.rope_theta)
    found = ops.apply_rope(before, cos, sin).transpose([0, 2, 1, 3]).numpy()
    np.testing.assert_allclose(found, dense.tensors[f"a.layer0.{which}_rot"], atol=2e-5, rtol=0)


def test_loss(dense, model):
    losses, count = dense.token_losses(model, "a")
    np.testing.assert_allclose(losses.numpy(), dense.tensors["a.token_loss"].reshape(-1), atol=2e-5, rtol=0)
    assert float(losses.sum()) / count == pytest.approx(dense.numbers["loss"]["a"], rel=1e-6)


@pytest.mark.parametrize("granularity", ["none", "full", "attention", "core-attention"])
def test_gradients(granularity, dense, model, public_gradients):
    model.train()
    model.set_recompute(granularity)
    losses, count = dense.token_losses(model, "a")
    (losses.sum() / count).backward()
    found = public_gradients(plugin, model)
    dense.check_gradients(found)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("case", ["gen", "gen1"])
def test_greedy_answers(case, cached, dense, model, greedy, cache):
    mask = dense.tensors.get(f"{case}.attention_mask")
    tokens, logits = greedy(model, dense.tensors[f"{case}.input_ids"], 16, mask, cache if cached else None)
    np.testing.assert_array_equal(tokens, dense.tensors[f"{case}.new_tokens"])
    np.testing.assert_allclose(logits, dense.tensors[f"{case}.logits"], atol=2e-5, rtol=0)
