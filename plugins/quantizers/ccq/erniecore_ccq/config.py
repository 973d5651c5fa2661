"""The ``quantizer`` section of ``ccq-2.5`` and ``ccq-2.06``. Knows no model and no tensors."""

from __future__ import annotations

from erniecore_weight_only.config import PATTERNS, Patterns

from erniecore.api import Field


class CcqConfig(Patterns):
    """Which layers are stored how. Embeddings, routers, norms and heads never are packed."""

    layers: tuple[str, ...] = Field(
        ("*",), description=f"What is packed as convolutional codes. {PATTERNS}`*`: every linear layer and expert."
    )
    int4: tuple[str, ...] = Field(
        (), description="Patterns of layers in four bits instead, a scale per output; wins over `layers`."
    )
    int8: tuple[str, ...] = Field(
        (), description="Patterns of layers in eight bits instead, a scale per output; wins over `layers` and `int4`."
    )
    ignore: tuple[str, ...] = Field(
        ("*out_linear*",), description="Patterns of layers that stay as they are; wins over all."
    )
