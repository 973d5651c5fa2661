"""How each parameter of the vision-language model may be sharded, as data: the text part as in the text model, experts of
both kinds alike. What images pass before the layers is small and whole on every rank."""

from __future__ import annotations

from dataclasses import replace

from erniecore_ernie45_moe import layout as moe

from erniecore.api.model import Layout

VISION_RULES: tuple[tuple[str, str], ...] = (
    ("vision_model.*", "replicate"),
    ("model.resampler_model.*", "replicate"),
    ("*.mlp.vision_experts.*", "expert"),
    ("*.mlp.gate.weight_1", "replicate"),
)


def layout() -> Layout:
    """Every parameter matches a rule; the first one counts."""
    text = moe.layout()
    stages = replace(moe.MOE_STAGES, seeing=("vision_model", "model.resampler_model"))
    return replace(text, rules=VISION_RULES + text.rules, stages=stages)
