"""How each parameter may be sharded, as data. Patterns are shell patterns over our names."""

from __future__ import annotations

from erniecore.api.model import Layout

RULES: tuple[tuple[str, str], ...] = (
    ("model.embed_tokens.weight", "vocab"),
    ("*.self_attn.[qkv]_proj.*", "column"),
    ("*.self_attn.o_proj.weight", "row"),
    ("*.self_attn.o_proj.bias", "replicate"),
    ("*.mlp.up_proj.*", "column"),
    ("*.mlp.down_proj.weight", "row"),
    ("*.mlp.down_proj.bias", "replicate"),
    ("*norm.*", "replicate"),
    ("nl[ug].in_proj.*", "replicate"),
    ("nl[ug].out_proj.*", "replicate"),
    ("heads.*", "replicate"),
)


def layout() -> Layout:
    """Every parameter matches one style. No pipeline: the task modules stand beside each other, not one after the other."""
    return Layout(RULES, matrices=("nl[ug].in_proj.weight", "nl[ug].out_proj.weight"))
