"""The ``model`` section of the settings for PaddleOCR-VL. Says what to build; reads no file."""

from __future__ import annotations

from typing import Literal

from erniecore_ernie45_vl.config import MediaSection

from erniecore.api import Field


class OcrConfig(MediaSection):
    """Section of PaddleOCR-VL. Runs train all of it, or what an adapter adds."""

    template: str = Field(
        "",
        description="Chat template: `paddleocr-vl`, those of the text models, or the path of a .jinja file. Empty: the tokenizer "
        "directory's own (chat_template.jinja or a key of tokenizer_config.json), else `paddleocr-vl`.",
    )
    task: Literal["ocr", "table", "formula", "chart", "spotting", "seal"] = Field(
        "ocr",
        description="What is asked where a question is an image alone: `ocr` is `OCR:`, `table` is `Table Recognition:`, and "
        "likewise `formula`, `chart`, `spotting` and `seal`.",
    )
    image_min_pixels: int = Field(
        0,
        ge=0,
        description="Smaller images are enlarged to so many pixels. 0: as preprocessor_config.json of the model says, else "
        "147384.",
    )
    image_max_pixels: int = Field(
        0,
        ge=0,
        description="Larger images are reduced to so many pixels; 784 are a token. 0: as preprocessor_config.json of the model "
        "says, else 2822400.",
    )
