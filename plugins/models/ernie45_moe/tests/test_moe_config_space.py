"""The mixture-of-experts model against the numpy reference over the space of configurations."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45_moe.architecture import MoeArchitecture
from erniecore_ernie45_moe.plugin import plugin

CASES = {
    "no shared experts": {"moe_num_shared_experts": 0},
    "two shared experts": {"moe_num_shared_experts": 2},
    "one expert for a token": {"moe_k": 1},
    "all experts for a token": {"moe_k": 5},
    "every layer": {"moe_layer_start_index": 0},
    "every second layer": {"moe_layer_start_index": 0, "moe_layer_interval": 2, "num_hidden_layers": 4},
    "a range of layers": {"moe_layer_start_index": 1, "moe_layer_end_index": 1},
    "no layer": {"moe_layer_start_index": 7},
    "biases, tied": {"use_bias": True},
    "biases, untied": {"use_bias": True, "tie_word_embeddings": False},
    "one shared head": {"num_key_value_heads": 1, "head_dim": 10},
    "no shared heads": {"num_key_value_heads": 4},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_logits_equal_the_reference(changes, build, reference):
    config = reference.moe_config(**changes)
    weights = reference.random_weights(config)
    model = build(plugin, config, weights)
    model.eval()
    ids = np.random.default_rng(1).integers(0, config["vocab_size"], (2, 9))
    expected = reference.logits(config, weights, ids)
    np.testing.assert_allclose(model(paddle.to_tensor(ids)).numpy(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({"moe_layer_start_index": 1, "moe_layer_end_index": -1}, [1, 2, 3, 4, 5]),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 3}, [1, 2, 3]),
        ({"moe_layer_start_index": 0, "moe_layer_interval": 2}, [1, 3, 5]),
        ({"moe_layer_start_index": 2, "moe_layer_interval": 3}, [2, 5]),
    ],
)
def test_which_layers_route(keys, layers, reference):
    arch = MoeArchitecture.parse(reference.moe_config(num_hidden_layers=6, **keys))
    assert [index for index in range(6) if arch.is_moe(index)] == layers


def test_packed_equals_separate_in_logits_and_gradients(build, reference):
    config = reference.moe_config(moe_num_shared_experts=2)
    model = build(plugin, config, reference.random_weights(config))
    lengths = (6, 1, 8)
    ids = np.random.default_rng(3).integers(0, config["vocab_size"], (1, 15))
    positions = paddle.to_tensor(np.concatenate([np.arange(n) for n in lengths])[None])
    ends = np.repeat(np.cumsum(lengths), lengths).astype(np.int32).reshape(1, 1, 15, 1)
    packed = model(paddle.to_tensor(ids), position_ids=positions, startend_row_indices=paddle.to_tensor(ends))
    parts = [model(paddle.to_tensor(part)) for part in np.split(ids, np.cumsum(lengths)[:-1], axis=1)]
    alone = paddle.concat(parts, axis=1)
    np.testing.assert_allclose(packed.numpy(), alone.numpy(), atol=1e-5, rtol=1e-5)
    found, expected = gradients(model, packed), gradients(model, alone)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-4, rtol=1e-4, err_msg=name)


def gradients(model, logits):
    weights = paddle.to_tensor(np.random.default_rng(5).standard_normal(logits.shape).astype(np.float32))
    (logits * weights).sum().backward()
    found = {name: p.grad.numpy().copy() for name, p in model.named_parameters() if p.grad is not None}
    model.clear_gradients()
    return found
