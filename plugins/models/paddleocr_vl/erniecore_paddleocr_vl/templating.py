"""The tokenizer of PaddleOCR-VL: the chat template of the published model, with images before the text of their question, and
the files of an image processor beside the tokenizer's, so that other libraries prepare the same images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from erniecore_ernie45.templating import TEMPLATES as TEXT
from erniecore_ernie45.templating import BuiltIn, choose_template
from erniecore_ernie45_vl.seeing import END, PLACEHOLDER, START, SeeingTemplate
from erniecore_ernie45_vl.templating import with_images
from erniecore_text import SentencePieceTokenizer

from erniecore.api import Json
from erniecore.api.data import IMAGE_MARKER, Message
from erniecore.api.model import Segment
from erniecore_paddleocr_vl.config import OcrConfig
from erniecore_paddleocr_vl.images import FILE, OcrSizing, described, read_sizing
from erniecore_paddleocr_vl.prompts import TASKS

#: a directory without a template has the first
TEMPLATES: dict[str, BuiltIn] = {"paddleocr-vl": BuiltIn("erniecore_paddleocr_vl", "</s>", "</s>"), **TEXT}


class OcrTemplate(SeeingTemplate):
    """Images have no numbers and stand before the text of their question, wherever their markers are; an image alone is asked
    about with the words of :attr:`task`."""

    task = "ocr"

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"task": self.task})

    def segments(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json] = (),
        *,
        add_generation_prompt: bool = False,
        thinking: bool | None = None,
    ) -> list[Segment]:
        """As in any model that sees. Raises ``RowError`` also for images that cannot be read."""
        ordered = [self.ordered(message) for message in messages]
        return super().segments(ordered, tools, add_generation_prompt=add_generation_prompt, thinking=thinking)

    def ordered(self, message: Message) -> Message:
        """With its images first."""
        if not message.media:
            return message
        text = message.content.replace(IMAGE_MARKER, "")
        asked = text if text.strip() else TASKS[self.task]
        return replace(message, content=IMAGE_MARKER * len(message.media) + asked)

    def written(self, number: int, tokens: int) -> str:
        """What stands for an image of so many tokens."""
        return START + PLACEHOLDER * tokens + END


class OcrTokenizer(SentencePieceTokenizer):
    """Saves what an image processor needs beside its own files."""

    sizing = OcrSizing()

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"sizing": self.sizing})

    def save(self, directory: Path) -> list[Path]:
        """The tokenizer's files, of which tokenizer_config.json names the token of images, and preprocessor_config.json."""
        paths = super().save(directory)
        settings = Path(directory) / "tokenizer_config.json"
        known = {"image_token": PLACEHOLDER} if PLACEHOLDER in self.special_tokens else {}
        said = json.loads(settings.read_text(encoding="utf-8"))
        _write(settings, {**said, "extra_special_tokens": known, "processor_class": "PaddleOCRVLProcessor"})
        _write(Path(directory) / FILE, described(self.sizing))
        return sorted([*paths, Path(directory) / FILE])


def _write(path: Path, value: Json) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def read_ocr_tokenizer(directory: Path, config: OcrConfig) -> OcrTokenizer:
    """The tokenizer in ``directory``, with a chat template that writes images as the settings want them.

    Raises ``EnvironmentFault`` when the directory holds no tokenizer, or a damaged preprocessor_config.json."""
    tokenizer = OcrTokenizer.from_directory(directory, choose_template(config.template, directory, TEMPLATES))
    assert isinstance(tokenizer, OcrTokenizer)
    tokenizer.sizing = read_sizing(directory, config)
    with_images(tokenizer, config, tokenizer.sizing, OcrTemplate, tokenizer.sizing.upright)
    if isinstance(tokenizer.chat_template, OcrTemplate):
        tokenizer.chat_template.task = config.task
    return tokenizer
