"""The chat templates of the vision-language models, as published. Text alone is rendered by them; ``seeing.py`` adds
images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_ernie45.templating import TEMPLATES as TEXT
from erniecore_ernie45.templating import BuiltIn, choose_template
from erniecore_text import SentencePieceTokenizer

from erniecore_ernie45_vl.preprocessing import Preprocessing, write

if TYPE_CHECKING:
    from erniecore.api.model import Tokenizer
    from erniecore_ernie45_vl.config import MediaSection, VlConfig
    from erniecore_ernie45_vl.images import Sizing
    from erniecore_ernie45_vl.seeing import SeeingTemplate
    from erniecore_ernie45_vl.videos import VideoReading

#: keys of tokenizer_config.json by which transformers finds the tokens of images and videos
NAMED = {
    "image_token": "<|IMAGE_PLACEHOLDER|>",
    "image_start_token": "<|IMAGE_START|>",
    "image_end_token": "<|IMAGE_END|>",
    "video_token": "<|VIDEO_PLACEHOLDER|>",
    "video_start_token": "<|VIDEO_START|>",
    "video_end_token": "<|VIDEO_END|>",
}
#: a directory without a template has the first
TEMPLATES: dict[str, BuiltIn] = {
    "ernie45-vl": BuiltIn("erniecore_ernie45_vl"),
    "ernie45-vl-thinking": BuiltIn("erniecore_ernie45_vl"),
    **TEXT,
}


class VlTokenizer(SentencePieceTokenizer):
    """Saves what the processors of images and videos need beside its own files, so that whoever opens the model later, here or
    in another library, prepares them as in training."""

    preprocessing = Preprocessing()

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"preprocessing": self.preprocessing})

    def save(self, directory: Path) -> list[Path]:
        """The tokenizer's files, of which tokenizer_config.json names the tokens of images and videos, and those of
        ``preprocessing.write``."""
        paths = super().save(directory)
        settings = Path(directory) / "tokenizer_config.json"
        said = json.loads(settings.read_text(encoding="utf-8"))
        known = {key: token for key, token in NAMED.items() if token in self.special_tokens}
        said |= {"extra_special_tokens": known, "processor_class": "Ernie4_5_VLMoeProcessor"}
        settings.write_text(json.dumps(said, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        return sorted([*paths, *write(self.preprocessing, Path(directory))])


def read_vl_tokenizer(directory: Path, config: VlConfig) -> VlTokenizer:
    """The tokenizer in ``directory``, with a chat template that writes images and videos as the settings want them.

    Raises ``EnvironmentFault`` when the directory holds no tokenizer, or says of images what is not usable."""
    tokenizer = VlTokenizer.from_directory(directory, choose_template(config.template, directory, TEMPLATES))
    assert isinstance(tokenizer, VlTokenizer)
    seeing(tokenizer, config, Preprocessing.of(config, directory))
    return tokenizer


def seeing(tokenizer: VlTokenizer, config: VlConfig, made: Preprocessing) -> None:
    """Let its chat template write images and videos of these sizes."""
    from erniecore_ernie45_vl.seeing import SeeingTemplate

    tokenizer.preprocessing = made
    with_images(tokenizer, config, made.images, SeeingTemplate, made.image_upright, video_reading(config, made))


def video_reading(config: VlConfig, made: Preprocessing) -> VideoReading:
    """How the settings want videos."""
    from erniecore_media import Limits, VideoLimits

    from erniecore_ernie45_vl.videos import VideoReading

    limits = VideoLimits(config.video_most_bytes, config.video_most_pixels, config.video_most_seconds)
    of_frames = Limits(bytes=config.image_most_bytes, pixels=config.image_most_pixels)
    return VideoReading(made.frames, made.choice, limits, of_frames, made.video_timestamps, made.video_font)


def with_images(
    tokenizer: Tokenizer,
    config: MediaSection,
    sizing: Sizing,
    kind: type[SeeingTemplate],
    upright: bool,
    video: VideoReading | None = None,
) -> Tokenizer:
    """The tokenizer with its chat template as a ``kind``, if it has one, for images of these sizes; ``video``: None: videos are
    refused."""
    from erniecore_media import Limits
    from erniecore_text import JinjaChatTemplate

    from erniecore_ernie45_vl.reading import Reading

    limits = Limits(bytes=config.image_most_bytes, pixels=config.image_most_pixels)
    augment = tuple(transform.made() for transform in config.image_augment)
    reading = Reading(sizing, limits, config.media_roots, upright, video, augment)
    template = tokenizer.chat_template
    if isinstance(template, JinjaChatTemplate):
        tokenizer.chat_template = kind(template, tokenizer.special_tokens, reading)
    return tokenizer
