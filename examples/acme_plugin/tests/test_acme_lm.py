"""The model at toy size."""

import pytest

from erniecore.api import ConfigError
from erniecore_acme.lm.plugin import plugin

ARCHITECTURE = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
}


def test_number_of_parameters():
    from erniecore_acme.lm.model import build

    model = build(ARCHITECTURE, "float32")
    per_layer = 4 * 16 * 16 + 3 * 16 * 24 + 2 * 16
    assert sum(int(p.size) for p in model.parameters()) == 2 * 50 * 16 + 16 + 2 * per_layer


def test_missing_keys_are_named():
    with pytest.raises(ConfigError, match="rope_theta"):
        plugin.ernie_read_architecture(
            plugin.Config(architecture={k: v for k, v in ARCHITECTURE.items() if k != "rope_theta"})
        )
