"""The ``quantizer`` sections: which layers are packed, and how many inputs share a scale. Knows no model."""

from __future__ import annotations

from typing import Any

from pydantic import field_validator

from erniecore.api import Field
from erniecore.api.quantizer import QuantizerConfig

PATTERNS = (
    "Patterns over layer names such as `q_proj` or `model.layers.1?.mlp.*`; all routed experts of a layer are one name, \
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


class WholeConfig(Patterns):
    """One form for every linear layer. Embeddings, routers and heads are never packed."""

    layers: tuple[str, ...] = Field(("*",), description=f"What is packed. {PATTERNS}`*`: every linear layer.")
    ignore: tuple[str, ...] = Field(
        ("*out_linear*",), description="Patterns of layers that stay as they are, whatever `layers` says."
    )
    group_size: int = Field(
        0, ge=0, description="Consecutive inputs of an output that share a scale. 0: all of them, one scale per output."
    )


class Nf4Config(WholeConfig):
    """NF4 is made for small blocks: 64 values share a scale."""

    group_size: int = Field(64, ge=1, description="Consecutive inputs of an output that share a scale.")


class MixConfig(Patterns):
    """Routed experts in four bits, attention and dense layers in eight, shared experts as they are."""

    int4: tuple[str, ...] = Field(("mlp.experts.*",), description=f"What is packed in four bits. {PATTERNS}")
    int8: tuple[str, ...] = Field(
        ("self_attn.*_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        description="What is packed in eight bits; wins over `int4`. The default does not name shared experts.",
    )
    ignore: tuple[str, ...] = Field(
        ("*out_linear*",), description="Patterns of layers that stay as they are; wins over both."
    )
    group_size: int = Field(
        0, ge=0, description="Consecutive inputs of an int4 output that share a scale. 0: one scale per output."
    )
