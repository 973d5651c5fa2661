"""The ``quantizer`` section of ``ccq-2.5`` and ``ccq-2.06``. Knows no model and no tensors."""

from __future__ import annotations

from erniecore_weight_only.config import PATTERNS, HeadConfig, Patterns

from erniecore.api import Field


class CcqConfig(Patterns, HeadConfig):
    """Layers by quant dtype. Routers, norms, and embeddings that are no head, are never quantized."""

    layers: tuple[str, ...] = Field(
        ("*",), description=f"Layers to quantize to convolutional codes. {PATTERNS}`*`: every linear layer and expert."
    )
    int4: tuple[str, ...] = Field(
        (),
        description="Patterns of layers to quantize to int4 with a scale per output; takes precedence over `layers`.",
    )
    int8: tuple[str, ...] = Field(
        (), description="Patterns of layers to quantize to int8 with a scale per output; takes precedence over `int4`."
    )
    ignore: tuple[str, ...] = Field(
        ("*out_linear*",), description="Patterns of layers to leave unquantized; takes precedence over all others."
    )
