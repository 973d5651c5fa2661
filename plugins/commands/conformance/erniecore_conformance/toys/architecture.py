"""The architecture of the toy model."""

from __future__ import annotations

from erniecore.api import Json

TOY_ARCHITECTURE: Json = {
    "model_type": "toy",
    "vocab_size": 260,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
