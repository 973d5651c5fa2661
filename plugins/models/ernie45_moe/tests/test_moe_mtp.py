"""Multi-token prediction against the stored derivation, its isolation, and what happens when it is off."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45_moe.plugin import plugin

from erniecore.api import ConfigError, ops


@pytest.fixture(scope="module")
def mtp(golden):
    return golden("moe_mtp")


@pytest.fixture
def model(mtp, build):
    model = build(plugin, mtp.config, mtp.weights, mtp=True)
    model.train()
    return model


def mean_loss(model, hidden, labels):
    weight, transposed, _ = model.head()
    flat = hidden.reshape([-1, hidden.shape[-1]])
    losses = ops.linear_cross_entropy(flat, weight, paddle.to_tensor(labels.reshape(-1)), transposed=transposed)
    return losses.sum() / int((labels != -100).sum())


def both_losses(model, mtp):
    features, labels = model.features(paddle.to_tensor(mtp.tensors["input_ids"])), mtp.tensors["labels_shifted"]
    main = mean_loss(model, features.hidden[:, :20], labels[:, :20])
    return features, main, mean_loss(model, features.mtp_hidden[0][:, :20], labels[:, 1:21])


def test_logits_and_losses(mtp, model):
    features, main, mtp_loss = both_losses(model, mtp)
    assert len(features.mtp_hidden) == 1
    np.testing.assert_allclose(model.logits(features.hidden).numpy()[:, :20], mtp.tensors["main_logits"], atol=2e-5)
    np.testing.assert_allclose(
        model.logits(features.mtp_hidden[0]).numpy()[:, :20], mtp.tensors["mtp_logits"], atol=2e-5
    )
    assert float(main) == pytest.approx(mtp.numbers["loss"]["main"], rel=1e-6)
    assert float(mtp_loss) == pytest.approx(mtp.numbers["loss"]["mtp"], rel=1e-6)


@pytest.mark.parametrize("granularity", ["none", "full"])
def test_gradients(granularity, mtp, model, public_gradients):
    model.set_recompute(granularity)
    _, main, mtp_loss = both_losses(model, mtp)
    (main + mtp.numbers["mtp_loss_scaling_factor"] * mtp_loss).backward()
    found = public_gradients(plugin, model)
    mtp.check_gradients(found)


def test_packed_samples_are_isolated(mtp, model):
    ids, lengths = mtp.tensors["input_ids"][:1], (8, 13)
    positions = np.concatenate([np.arange(n) for n in lengths])[None]
    ends = np.repeat(np.cumsum(lengths), lengths).astype(np.int32).reshape(1, 1, -1, 1)
    masks = {"position_ids": paddle.to_tensor(positions), "startend_row_indices": paddle.to_tensor(ends)}
    packed = model.features(paddle.to_tensor(ids), **masks).mtp_hidden[0].numpy()
    # The last position of a sample has no token after the next one, so its label is never learned.
    for start, end in ((0, 8), (8, 21)):
        alone = model.features(paddle.to_tensor(ids[:, start:end])).mtp_hidden[0].numpy()
        np.testing.assert_allclose(packed[:, start : end - 1], alone[:, :-1], atol=1e-5, rtol=1e-5)


def test_two_depths_look_two_and_three_ahead(mtp, build):
    model = build(plugin, {**mtp.config, "num_nextn_predict_layers": 2}, mtp=True)
    model.train()
    ids = mtp.tensors["input_ids"][:1]
    before = [h.numpy() for h in model.features(paddle.to_tensor(ids)).mtp_hidden]
    changed = ids.copy()
    changed[0, 10] = (changed[0, 10] + 1) % mtp.config["vocab_size"]
    after = [h.numpy() for h in model.features(paddle.to_tensor(changed)).mtp_hidden]
    moved = [np.abs(a - b).max(axis=(0, 2)) for a, b in zip(before, after, strict=True)]
    first = [int(np.flatnonzero(change)[0]) for change in moved]
    assert first == [9, 8]


def test_a_block_routes_when_layer_0_does(mtp, build):
    model = build(plugin, {**mtp.config, "moe_layer_start_index": 0}, mtp=True, router_z_loss=1.0)
    model.train()
    features = model.features(paddle.to_tensor(mtp.tensors["input_ids"]))
    assert len(list(model.blocks())) == 4
    assert model.balancer.loads.shape[0] == 4
    assert set(features.auxiliary) == {"z"}
    model.after_step()


def test_nothing_is_predicted_ahead_in_evaluation(mtp, model):
    model.eval()
    assert model.features(paddle.to_tensor(mtp.tensors["input_ids"])).mtp_hidden == ()


def test_off_by_default_and_its_weights_left_alone(mtp, build):
    model = build(plugin, mtp.config, mtp.weights)
    model.train()
    assert not [name for name in model.state_dict() if "mtp" in name]
    assert model.features(paddle.to_tensor(mtp.tensors["input_ids"])).mtp_hidden == ()
    assert model.architecture["num_nextn_predict_layers"] == 0
    assert model.architecture["moe_num_experts"] == mtp.config["moe_num_experts"]


def test_weights_of_an_architecture_that_has_it_are_wanted(mtp, build):
    without = {name: value for name, value in mtp.weights.items() if "mtp" not in name}
    with pytest.raises(KeyError, match="mtp"):
        build(plugin, mtp.config, without, mtp=True)


def test_a_turned_projection_is_recognized_by_its_shape(mtp, model, build):
    turned = {name: value.T if "mtp_linear_proj" in name else value for name, value in mtp.weights.items()}
    other = build(plugin, mtp.config, turned, mtp=True)
    name = "model.mtp_linear_proj.0.weight"
    np.testing.assert_array_equal(other.state_dict()[name].numpy(), model.state_dict()[name].numpy())


def test_asking_for_it_where_there_is_none_is_refused(golden, build):
    with pytest.raises(ConfigError, match=r"model\.mtp"):
        build(plugin, golden("moe").config, mtp=True)
