"""The chat templates of the vision-language models, as published. Text alone is rendered by them; ``seeing.py`` adds
images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore_ernie45.templating import TEMPLATES as TEXT
from erniecore_ernie45.templating import BuiltIn

if TYPE_CHECKING:
    from erniecore.api.model import Tokenizer
    from erniecore_ernie45_vl.config import MediaSection, VlConfig
    from erniecore_ernie45_vl.images import Sizing
    from erniecore_ernie45_vl.seeing import SeeingTemplate
    from erniecore_ernie45_vl.videos import VideoReading

#: a directory without a template has the first
TEMPLATES: dict[str, BuiltIn] = {
    "ernie45-vl": BuiltIn("erniecore_ernie45_vl"),
    "ernie45-vl-thinking": BuiltIn("erniecore_ernie45_vl"),
    **TEXT,
}


def seeing(tokenizer: Tokenizer, config: VlConfig) -> Tokenizer:
    """The tokenizer with a chat template that writes images as the settings want them."""
    from erniecore_ernie45_vl.images import Sizing
    from erniecore_ernie45_vl.seeing import SeeingTemplate

    sizing = Sizing(fewest=config.image_min_pixels, most=config.image_max_pixels)
    return with_images(tokenizer, config, sizing, SeeingTemplate, video_reading(config))


def video_reading(config: VlConfig) -> VideoReading:
    """How the settings want videos."""
    from erniecore_media import FrameChoice, Limits, VideoLimits

    from erniecore_ernie45_vl.images import Sizing
    from erniecore_ernie45_vl.videos import VideoReading

    choice = FrameChoice(
        config.video_frames,
        config.video_fps,
        config.video_min_frames,
        config.video_max_frames,
        config.video_target_frames,
    )
    limits = VideoLimits(config.video_most_bytes, config.video_most_pixels, config.video_most_seconds)
    return VideoReading(
        Sizing(fewest=config.video_min_pixels, most=config.video_max_pixels),
        choice,
        limits,
        Limits(bytes=config.image_most_bytes, pixels=config.image_most_pixels),
        config.video_timestamps,
        config.video_font,
    )


def with_images(
    tokenizer: Tokenizer,
    config: MediaSection,
    sizing: Sizing,
    kind: type[SeeingTemplate],
    video: VideoReading | None = None,
) -> Tokenizer:
    """The tokenizer with its chat template as a ``kind``, if it has one, for images of these sizes; ``video``: None: videos are
    refused."""
    from erniecore_media import Limits
    from erniecore_text import JinjaChatTemplate

    from erniecore_ernie45_vl.seeing import Reading

    limits = Limits(bytes=config.image_most_bytes, pixels=config.image_most_pixels)
    reading = Reading(sizing, limits, config.media_roots, config.image_upright, video)
    template = tokenizer.chat_template
    if isinstance(template, JinjaChatTemplate):
        tokenizer.chat_template = kind(template, tokenizer.special_tokens, reading)
    return tokenizer
