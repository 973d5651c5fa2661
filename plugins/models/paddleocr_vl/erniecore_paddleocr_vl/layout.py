"""How each parameter may be sharded, as data: the text part as in the dense model, tower and projector whole on every
rank."""

from __future__ import annotations

from dataclasses import replace

from erniecore_ernie45 import layout as dense

from erniecore.api.model import Layout

VISION_RULES: tuple[tuple[str, str], ...] = (("vision_model.*", "replicate"), ("projector.*", "replicate"))


def layout() -> Layout:
    """Every parameter matches a rule; the first one counts."""
    text = dense.layout()
    stages = replace(dense.STAGES, seeing=("vision_model", "projector"))
    return replace(text, rules=VISION_RULES + text.rules, stages=stages)
