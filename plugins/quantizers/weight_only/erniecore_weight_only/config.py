"""The ``quantizer`` sections: which layers are quantized, and how many inputs share a scale."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator

from erniecore.api import Field
from erniecore.api.quantizer import QuantizerConfig

PATTERNS = (
    "Patterns over layer names such as `q_proj` or `model.layers.1?.mlp.*`; the routed experts of a layer share one name, \
as in `mlp.experts.up_proj`. "
)


class Patterns(QuantizerConfig):
    """``a,b`` as the command line gives it; a list as files do."""

    @field_validator("layers", "int4", "int8", "ignore", mode="before", check_fields=False)
    @classmethod
    def _words(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(word.strip() for word in value.split(",") if word.strip())
        return tuple(value) if isinstance(value, list) else value


class HeadConfig(QuantizerConfig):
    """The largest matrix of a small model."""

    head: Literal["none", "bf16", "int8"] = Field(
        "none",
        description="The output head, and the embedding if both share one weight: `none` leaves it as it is, `bf16` keeps it in \
bfloat16, `int8` quantizes it with one scale per word.",
    )


class LayersConfig(Patterns, HeadConfig):
    """The same for every linear layer. Routers, and embeddings that are no head, are never quantized."""

    layers: tuple[str, ...] = Field(("*",), description=f"Layers to quantize. {PATTERNS}`*`: every linear layer.")
    ignore: tuple[str, ...] = Field(
        ("*out_linear*",), description="Patterns of layers to leave unquantized; takes precedence over `layers`."
    )


class WholeConfig(LayersConfig):
    """One quant dtype for every linear layer, with scales."""

    group_size: int = Field(
        0, ge=0, description="Consecutive inputs of an output that share a scale. 0: all of them, one scale per output."
    )


class Bf16Config(LayersConfig):
    """Which weights stay in bfloat16, and whether others are rounded to it."""

    exact: bool = Field(
        False,
        description="Keep only weights that the file has in bfloat16; others stay as they are, so none is rounded.",
    )


class Nf4Config(WholeConfig):
    """NF4 needs small groups; the default is 64 values per scale."""

    group_size: int = Field(64, ge=1, description="Consecutive inputs of an output that share a scale.")


class MixConfig(Patterns, HeadConfig):
    """Routed experts in 4 bits, attention and dense layers in 8 bits, shared experts unquantized."""

    int4: tuple[str, ...] = Field(("mlp.experts.*",), description=f"Layers to quantize to int4. {PATTERNS}")
    int8: tuple[str, ...] = Field(
        ("self_attn.*_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        description="Layers to quantize to int8; takes precedence over `int4`. The default excludes shared experts.",
    )
    ignore: tuple[str, ...] = Field(
        ("*out_linear*",), description="Patterns of layers to leave unquantized; takes precedence over both."
    )
    group_size: int = Field(
        0, ge=0, description="Consecutive inputs of an int4 output that share a scale. 0: one scale per output."
    )
