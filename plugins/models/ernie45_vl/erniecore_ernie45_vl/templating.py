"""The chat templates of the vision-language models, as published. Text alone is rendered by them; ``seeing.py`` adds
images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore_ernie45.templating import TEMPLATES as TEXT
from erniecore_ernie45.templating import BuiltIn

if TYPE_CHECKING:
    from erniecore.api.model import Tokenizer
    from erniecore_ernie45_vl.config import VlConfig

#: a directory without a template has the first
TEMPLATES: dict[str, BuiltIn] = {
    "ernie45-vl": BuiltIn("erniecore_ernie45_vl"),
    "ernie45-vl-thinking": BuiltIn("erniecore_ernie45_vl"),
    **TEXT,
}


def seeing(tokenizer: Tokenizer, config: VlConfig) -> Tokenizer:
    """The tokenizer with a chat template that writes images as the settings want them."""
    from erniecore_media import Limits
    from erniecore_text import JinjaChatTemplate

    from erniecore_ernie45_vl.images import Sizing
    from erniecore_ernie45_vl.seeing import Reading, SeeingTemplate

    sizing = Sizing(fewest=config.image_min_pixels, most=config.image_max_pixels)
    limits = Limits(bytes=config.image_most_bytes, pixels=config.image_most_pixels)
    reading = Reading(sizing, limits, config.media_roots, config.image_upright)
    template = tokenizer.chat_template
    if isinstance(template, JinjaChatTemplate):
        tokenizer.chat_template = SeeingTemplate(template, tokenizer.special_tokens, reading)
    return tokenizer
