"""The ``model`` section of the settings for the vision-language models. Says what to build; reads no file."""

from __future__ import annotations

from typing import Any, Literal

from erniecore_ernie45.config import DecoderSection
from erniecore_ernie45_moe.config import RouterSection
from pydantic import ValidationInfo, field_validator

from erniecore.api import Field
from erniecore_ernie45_vl.augmentation import ImageTransform, spelled_out
from erniecore_ernie45_vl.parts import Part, part_of


class MediaSection(DecoderSection):
    """What every model that sees can be told: which image files it reads."""

    media_roots: tuple[str, ...] = Field(
        (),
        description="Directories that images of rows may lie in, besides that of the data file. Links are not followed.",
    )
    image_most_pixels: int = Field(
        1 << 26, ge=1, description="Images with more pixels in the file are refused before they are decoded."
    )
    image_most_bytes: int = Field(1 << 26, ge=1, description="Larger image files and data URLs are refused.")
    image_upright: bool | None = Field(
        None,
        description="Turn images as their EXIF note says; "
        "unset: as the model's preprocessor_config.json says, else false, as published.",
    )
    image_augment: tuple[ImageTransform, ...] = Field(
        (),
        description="Random changes of the images of training rows, in this order, once they have the size that the model sees; "
        "evaluation and use never have any. Names of transforms, each alone or with `p` and `range`, and the presets "
        "`document` and `photo`. What an image gets is a pure function of run.seed, the epoch, the row's place in its file and "
        "the image.",
    )

    @field_validator("image_augment", mode="before")
    @classmethod
    def _spelled_out(cls, value: Any) -> Any:
        return spelled_out(value)

    def augments(self) -> list[str]:
        """``image_augment``, where there is any."""
        return ["model.image_augment"] if self.image_augment else []


class VlConfig(RouterSection, MediaSection):
    """Section of the vision-language models: how to train what config.json describes. Runs train the text part unless ``train``
    says otherwise; the other parts are loaded, frozen and written again.

    What is unset about images and videos is as the model's ``preprocessor_config.json`` and ``video_preprocessor_config.json``
    say, so that a model is used as it was trained, else as usual (``preprocessing.py``)."""

    train: tuple[Part, ...] = Field(
        ("text",),
        description="Parts that are trained: `text` (embedding, attention, text experts and their routers, shared experts, "
        "norms, head), `vision` (the tower), `resampler`, `vision_experts` (with their routers). The others are frozen: no "
        "gradients, no optimizer state. With an adapter, `adapter.targets` says what is trained.",
    )
    lr_factors: dict[Part, float] = Field(
        {},
        description="Factor of the learning rate for each part that is trained; 1 where none is given. ERNIEKit's example for "
        "28B-A3B, which freezes the tower, has 0.9 for it (`vit_lr_ratio`).",
    )
    template: str = Field(
        "",
        description="Chat template: `ernie45-vl`, `ernie45-vl-thinking`, those of the text models, or the path of a .jinja file. "
        "Empty: the tokenizer directory's own (chat_template.jinja or a key of tokenizer_config.json), else `ernie45-vl`.",
    )
    image_min_pixels: int | None = Field(
        None,
        ge=28 * 28,
        description="Smaller images are enlarged to so many pixels. Unset, here and in what follows of images and videos: as "
        "the model's files say, else 56 x 56.",
    )
    image_max_pixels: int | None = Field(
        None,
        ge=28 * 28,
        description="Larger images are reduced to so many pixels; 784 are a token. Unset: else 6177 tokens.",
    )
    video_frames: Literal["fps", "intervals", "linspace"] | None = Field(
        None,
        description="Which frames of a video the model sees; unset: else `fps`. `fps`: as ERNIEKit: the middle of every "
        "1 / `video_fps` seconds; "
        "where that is fewer than `video_min_frames` or more than `video_max_frames`, so many, the middles of equal intervals. "
        "`intervals`: as PaddleFormers, `video_fps` times the seconds, from the middles of equal intervals. `linspace`: as "
        "LLaMA-Factory, as many, evenly from the first to the last.",
    )
    video_fps: float | None = Field(
        None, gt=0, le=60, description="Frames per second of a video; of a list of frames too. Unset: else 2."
    )
    video_min_frames: int | None = Field(
        None, ge=1, description="At least so many frames, by the rule `fps`. Unset: else 16."
    )
    video_max_frames: int | None = Field(
        None, ge=1, description="At most so many frames. Unset: else 480; published inference has 180."
    )
    video_target_frames: int | None = Field(
        None, ge=0, description="So many frames of every video; 0: by `video_fps`, unset: else that."
    )
    video_min_pixels: int | None = Field(
        None, ge=28 * 28, description="Smaller frames are enlarged to so many pixels. Unset: else 299 tokens of 784."
    )
    video_max_pixels: int | None = Field(
        None, ge=28 * 28, description="Larger frames are reduced to so many pixels. Unset: else 1196 tokens of 784."
    )
    video_timestamps: bool | None = Field(
        None,
        description="Write its time into the corner of every frame. Unset: else true, as published inference does.",
    )
    video_font: str | None = Field(
        None,
        description="TrueType font of the times; published inference has Roboto-Regular. It is copied beside the weights. "
        "Empty: the font of Pillow (Aileron).",
    )
    video_most_seconds: float = Field(1800.0, gt=0, description="Longer videos are refused.")
    video_most_pixels: int = Field(
        1 << 24, ge=1, description="Videos with larger frames are refused before they are decoded."
    )
    video_most_bytes: int = Field(1 << 28, ge=1, description="Larger video files and data URLs are refused.")

    @field_validator("train", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        """``text,vision`` as the command line gives it; a list as files do."""
        if isinstance(value, str):
            return tuple(word.strip() for word in value.split(",") if word.strip())
        return tuple(value) if isinstance(value, list) else value

    @field_validator("train")
    @classmethod
    def _some(cls, value: tuple[Part, ...]) -> tuple[Part, ...]:
        if not value or len(set(value)) < len(value):
            raise ValueError("name each part that is trained once, at least one")
        return value

    @field_validator("lr_factors")
    @classmethod
    def _of_trained(cls, value: dict[Part, float], info: ValidationInfo) -> dict[Part, float]:
        trained = info.data.get("train", ())
        for part, factor in value.items():
            if part not in trained:
                raise ValueError(f"{part} is not trained: name it in model.train, or leave its factor out")
            if not 0 < factor < float("inf"):
                raise ValueError(f"a factor is a positive number, that of {part} is {factor}")
        return value

    def trains(self, name: str, usual: bool) -> bool:
        """See ``train``; what is never trained by gradients stays so."""
        return part_of(name) in self.train and "e_score_correction_bias" not in name
