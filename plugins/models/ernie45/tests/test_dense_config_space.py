"""The dense model against the numpy reference over the space of configurations."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45.plugin import plugin

CASES = {
    "biases": {"use_bias": True},
    "untied": {"tie_word_embeddings": False},
    "untied with biases": {"tie_word_embeddings": False, "use_bias": True},
    "one shared head": {"num_key_value_heads": 1},
    "no shared heads": {"num_key_value_heads": 4},
    "one head": {"num_attention_heads": 1, "num_key_value_heads": 1},
    "narrow heads": {"head_dim": 2},
    "wide heads": {"head_dim": 20},
    "attention as wide as the stream": {"head_dim": 6},
    "large rope base": {"rope_theta": 500000.0, "rms_norm_eps": 1e-3},
    "one layer": {"num_hidden_layers": 1},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_logits_equal_the_reference(changes, build, reference):
    config = reference.config(**changes)
    weights = reference.random_weights(config)
    model = build(plugin, config, weights)
    model.eval()
    ids = np.random.default_rng(1).integers(0, config["vocab_size"], (2, 11))
    expected = reference.logits(config, weights, ids)
    np.testing.assert_allclose(model(paddle.to_tensor(ids)).numpy(), expected, atol=2e-5, rtol=2e-5)


def test_head_dim_defaults_to_hidden_over_heads(build, reference):
    config = reference.config(head_dim=6)
    weights = reference.random_weights(config)
    ids = np.arange(8).reshape(1, 8)
    expected = reference.logits(config, weights, ids)
    del config["head_dim"]
    model = build(plugin, config, weights)
    model.eval()
    np.testing.assert_allclose(model(paddle.to_tensor(ids)).numpy(), expected, atol=2e-5, rtol=2e-5)


def test_end_rows_hide_columns_as_in_the_reference(build, reference):
    config = reference.config()
    weights = reference.random_weights(config)
    model = build(plugin, config, weights)
    model.eval()
    rng = np.random.default_rng(2)
    ids = rng.integers(0, config["vocab_size"], (2, 9))
    ends = np.array([[4, 4, 4, 4, 9, 9, 7, 9, 9], [9, 3, 9, 9, 9, 9, 9, 8, 9]])
    expected = reference.logits(config, weights, ids, ends=ends)
    rows = paddle.to_tensor(ends.astype(np.int32).reshape(2, 1, 9, 1))
    found = model(paddle.to_tensor(ids), startend_row_indices=rows).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=2e-5)


def test_the_padding_row_of_the_embedding_learns_like_any_other(build, reference):
    model = build(plugin, reference.config(tie_word_embeddings=False))
    model(paddle.to_tensor([[0, 5]])).square().sum().backward()
    gradient = model.model.embed_tokens.weight.grad.numpy()
    assert [row for row in range(61) if np.any(gradient[row])] == [0, 5]
