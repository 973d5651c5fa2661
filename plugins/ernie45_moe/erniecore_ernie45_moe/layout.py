"""How each parameter of the mixture-of-experts model may be sharded, as data."""

from __future__ import annotations

from erniecore_ernie45.layout import COMMON_RULES, MLP_RULES

from erniecore.api import Layout

MOE_RULES: tuple[tuple[str, str], ...] = (
    ("*.mlp.experts.*", "expert"),
    ("*.mlp.gate.weight", "replicate"),
    ("*.mlp.moe_statics.*", "replicate"),
    ("*.shared_experts.gate_proj.*", "column"),
    ("*.shared_experts.up_proj.*", "column"),
    ("*.shared_experts.down_proj.weight", "row"),
    ("*.shared_experts.down_proj.bias", "replicate"),
    ("model.mtp_emb_norm.*", "replicate"),
    ("model.mtp_hidden_norm.*", "replicate"),
    ("model.mtp_linear_proj.*", "replicate"),
)


def layout() -> Layout:
    """Every parameter matches a rule; the first one counts."""
    return Layout(MOE_RULES + COMMON_RULES + MLP_RULES)
