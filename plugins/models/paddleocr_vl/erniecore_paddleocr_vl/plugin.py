"""The plugin object of PaddleOCR-VL. Each hook imports what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_ernie45.plugin import where_of

from erniecore.api import Json, hookimpl
from erniecore.api.model import ModelPlugin
from erniecore_paddleocr_vl.config import OcrConfig

if TYPE_CHECKING:
    from erniecore.api.model import DecoderShape, Layout, StateAdapter, Tokenizer
    from erniecore_paddleocr_vl.model import PaddleOcrVl


class PaddleOcrVlPlugin(ModelPlugin):
    """A small model that reads documents, of a vision tower and the dense text layers."""

    name = "paddleocr-vl"
    summary = "PaddleOCR-VL (0.9B): reads text, tables, formulas and charts in images"
    Config = OcrConfig
    model_types = ("paddleocr_vl",)
    recipes = "erniecore_paddleocr_vl.recipes"

    def conformance_media(self, architecture: Json) -> list[tuple[list[int], dict[str, Any]]]:
        """Four rows of one length, with one or two images each."""
        from erniecore_ernie45_vl.examples import example_rows

        from erniecore_paddleocr_vl.architecture import OcrArchitecture

        return example_rows(OcrArchitecture.parse(architecture))

    @hookimpl
    def ernie_read_architecture(self, config: OcrConfig) -> Json:
        """config.json in the flat form of the published model, as the settings want it, checked."""
        from erniecore_paddleocr_vl.architecture import OcrArchitecture, read_ocr_source

        where = where_of(config)
        source = read_ocr_source(config, where)
        OcrArchitecture.parse(source, where)
        return source

    @hookimpl
    def ernie_build_model(self, architecture: Json, dtype: str) -> PaddleOcrVl:
        """The model; its initializers say what new weights are."""
        from erniecore_paddleocr_vl.architecture import OcrArchitecture
        from erniecore_paddleocr_vl.model import PaddleOcrVl

        return PaddleOcrVl(OcrArchitecture.parse(architecture), dtype=dtype)

    @hookimpl
    def ernie_decoder_shape(self, architecture: Json) -> DecoderShape:
        """Sizes for the plan: of rows of text."""
        from erniecore_paddleocr_vl.architecture import OcrArchitecture

        return OcrArchitecture.parse(architecture).shape()

    @hookimpl
    def ernie_model_layout(self) -> Layout:
        """Sharding rules; the same for every size."""
        from erniecore_paddleocr_vl.layout import layout

        return layout()

    @hookimpl
    def ernie_state_adapter(self, architecture: Json) -> StateAdapter:
        """Names and shapes in public checkpoints."""
        from erniecore_paddleocr_vl.architecture import OcrArchitecture
        from erniecore_paddleocr_vl.state import OcrStateAdapter

        return OcrStateAdapter(OcrArchitecture.parse(architecture))

    @hookimpl
    def ernie_build_tokenizer(self, config: OcrConfig, directory: Path) -> Tokenizer:
        """The SentencePiece tokenizer in ``directory``, with a chat template that also writes images."""
        from erniecore_paddleocr_vl.templating import read_ocr_tokenizer

        return read_ocr_tokenizer(directory, config)


plugin = PaddleOcrVlPlugin()
