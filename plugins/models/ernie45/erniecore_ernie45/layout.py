"""How each parameter of the dense model may be sharded, as data. Patterns are shell patterns over our names."""

from __future__ import annotations

from erniecore.api.model import Layout, Stages

#: Embedding, head, attention, norms: the same in every ERNIE 4.5 text model.
COMMON_RULES: tuple[tuple[str, str], ...] = (
    ("model.embed_tokens.weight", "vocab"),
    ("lm_head.*", "vocab"),
    ("*.self_attn.[qkv]_proj.*", "column"),
    ("*.self_attn.o_proj.weight", "row"),
    ("*.self_attn.o_proj.bias", "replicate"),
    ("*norm.weight", "replicate"),
    ("*.residual.gate", "replicate"),
)

#: A dense MLP.
MLP_RULES: tuple[tuple[str, str], ...] = (
    ("*.mlp.gate_proj.*", "column"),
    ("*.mlp.up_proj.*", "column"),
    ("*.mlp.down_proj.weight", "row"),
    ("*.mlp.down_proj.bias", "replicate"),
)


#: Where a pipeline finds the parts.
STAGES = Stages(embedding="model.embed_tokens", layers="model.layers", norm="model.norm")


def layout() -> Layout:
    """Every parameter of the dense model matches exactly one style; a column bias is sharded with its columns."""
    return Layout(COMMON_RULES + MLP_RULES, STAGES)
