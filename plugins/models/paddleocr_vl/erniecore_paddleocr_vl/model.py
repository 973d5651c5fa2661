"""PaddleOCR-VL as a causal language model that reads images: the layers of the dense ERNIE 4.5 model with positions on three
axes, a vision tower before them, and a projector in between.

Letters: B batch, S new positions, H hidden, M tokens of images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from erniecore_ernie45.context import Context
from erniecore_ernie45.layers import DecoderLayer
from erniecore_ernie45.model import Decoder, default_dtype
from erniecore_ernie45_vl.positions import IMAGE, VIDEO, Grid
from erniecore_ernie45_vl.seeing_model import SeeingContext, SeeingModel, VisionInputs
from paddle import Tensor  # noqa: TID253

from erniecore.api import ops
from erniecore.api.model import Cache
from erniecore_paddleocr_vl.architecture import OcrArchitecture
from erniecore_paddleocr_vl.tower import OcrTower, Projector


class OcrDecoder(Decoder):
    """The stack of layers, with images in place of their placeholders."""

    def embed(self, input_ids: Tensor, context: Context) -> Tensor:
        x_BSH = super().embed(input_ids, context)
        return context.put_images(x_BSH) if isinstance(context, SeeingContext) else x_BSH


class PaddleOcrVl(SeeingModel):
    """The model; implements ``erniecore.api.model.CausalLM`` with further inputs: ``pixel_values`` float32 [patches, 588] or
    [patches, 3, 14, 14], row by row, and ``image_grid_thw`` int64 [images, 3]. All of it is trained."""

    def __init__(self, arch: OcrArchitecture, *, dtype: str = "float32") -> None:
        super().__init__(arch, lambda: OcrDecoder(arch, lambda index: DecoderLayer(arch, index)), dtype=dtype)
        self.vl: OcrArchitecture = arch
        with default_dtype(dtype):
            self.vision_model = OcrTower(arch)
            self.projector = Projector(arch)

    def make_context(
        self, input_ids: Tensor, *, cache: Cache | None, position_ids: Tensor | None = None, **masks: Tensor | None
    ) -> Context:
        """As in the text model, but columns i and i + d/2 are a rotary pair."""
        context = super().make_context(input_ids, cache=cache, position_ids=position_ids, **masks)
        return replace(context, halves=True)

    def axes(self) -> Sequence[int]:
        """Time, height, width, each so many pairs in a row."""
        return ops.axes_in_sections(self.vl.sections)

    def encode_images(self, seen: VisionInputs, grids: dict[int, list[Grid]]) -> Tensor:
        """Tokens [M, H] of all images. Raises ``ValueError`` for videos."""
        if VIDEO in grids or seen.pixel_values is None:
            raise ValueError("this model reads images, not videos")
        pixels_NP = seen.pixel_values.reshape([seen.pixel_values.shape[0], -1])
        x_NC = self.vision_model(pixels_NP, grids[IMAGE], again=self.tower_again)
        tokens_MH: Tensor = self.projector(x_NC, grids[IMAGE])
        return tokens_MH
