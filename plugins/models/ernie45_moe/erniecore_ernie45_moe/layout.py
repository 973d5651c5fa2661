"""How each parameter of the mixture-of-experts model may be sharded, as data."""

from __future__ import annotations

from dataclasses import replace

from erniecore_ernie45.layout import COMMON_RULES, MLP_RULES, STAGES

from erniecore.api.model import Layout

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


MOE_STAGES = replace(
    STAGES,
    further=("model.mtp_block", "model.mtp_emb_norm", "model.mtp_hidden_norm", "model.mtp_linear_proj"),
    auxiliary=("aux", "sequence", "z", "orthogonal", "similarity"),
)


def layout() -> Layout:
    """Every parameter matches a rule; the first one counts."""
    return Layout(MOE_RULES + COMMON_RULES + MLP_RULES, MOE_STAGES, matrices=("model.mtp_linear_proj.*.weight",))
