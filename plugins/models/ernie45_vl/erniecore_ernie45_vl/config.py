"""The ``model`` section of the settings for the vision-language models. Says what to build; reads no file."""

from __future__ import annotations

from erniecore_ernie45.config import ModelSection
from erniecore_ernie45_moe.config import RouterSection

from erniecore.api import Field


class MediaSection(ModelSection):
    """What every model that sees can be told: which image files it reads."""

    media_roots: tuple[str, ...] = Field(
        (),
        description="Directories that images of rows may lie in, besides that of the data file. Links are not followed.",
    )
    image_most_pixels: int = Field(
        1 << 26, ge=1, description="Images with more pixels in the file are refused before they are decoded."
    )
    image_most_bytes: int = Field(1 << 26, ge=1, description="Larger image files and data URLs are refused.")
    image_upright: bool = Field(
        False, description="Turn images as their EXIF note says; the published preprocessing ignores it."
    )


class VlConfig(RouterSection, MediaSection):
    """Section of the vision-language models: how to train what config.json describes. Runs train the text part; the vision
    part (tower, resampler, vision routers and experts) is loaded, frozen and written again."""

    template: str = Field(
        "",
        description="Chat template: `ernie45-vl`, `ernie45-vl-thinking`, those of the text models, or the path of a .jinja file. "
        "Empty: the tokenizer directory's own (chat_template.jinja or a key of tokenizer_config.json), else `ernie45-vl`.",
    )
    image_min_pixels: int = Field(56 * 56, ge=28 * 28, description="Smaller images are enlarged to so many pixels.")
    image_max_pixels: int = Field(
        6177 * 28 * 28, ge=28 * 28, description="Larger images are reduced to so many pixels; 784 are a token."
    )
