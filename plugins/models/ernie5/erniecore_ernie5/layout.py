"""How each parameter may be sharded, as data."""

from __future__ import annotations

from dataclasses import replace

from erniecore_ernie45_moe.layout import layout as moe_layout

from erniecore.api.model import Layout

MEDIA_RULES: tuple[tuple[str, str], ...] = (("image.*", "replicate"), ("audio.*", "replicate"))


def layout() -> Layout:
    """Every parameter matches one style; what brings media in and out is small, and whole on every rank. No pipeline: levels of
    frames are read between layers."""
    of_texts = moe_layout()
    matrices = (*of_texts.matrices, "image.embed.weight")
    return replace(of_texts, rules=MEDIA_RULES + of_texts.rules, stages=None, matrices=matrices)
