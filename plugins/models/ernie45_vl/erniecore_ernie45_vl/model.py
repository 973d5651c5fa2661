"""ERNIE 4.5 VL as a causal language model that also reads images and videos: the mixture-of-experts text model with a
vision tower before it, positions on three axes, and experts of their own for vision tokens.

Letters: B batch, S new positions, H hidden, N patches, M tokens of images.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import paddle  # noqa: TID253
from erniecore_ernie45.context import Context
from erniecore_ernie45.model import default_dtype
from erniecore_ernie45_moe.config import RouterSection
from erniecore_ernie45_moe.model import Ernie45MoeForCausalLM
from erniecore_ernie45_moe.mtp import MoeDecoder
from paddle import Tensor  # noqa: TID253

from erniecore.api import ops
from erniecore.api.model import Cache, Features
from erniecore_ernie45_vl.architecture import VlArchitecture
from erniecore_ernie45_vl.layers import VlContext, make_layer
from erniecore_ernie45_vl.positions import (
    IMAGE,
    VIDEO,
    Grid,
    Ints,
    kinds_of,
    read_grids,
    routed_as_vision,
    token_positions,
)
from erniecore_ernie45_vl.resampler import Resampler
from erniecore_ernie45_vl.vision import VisionTower


class VisionInputs(NamedTuple):
    """Images and videos of a batch, in the order of their placeholders in the sequences.

    Attributes:
        pixel_values: float32 [N, values of a patch], normalized; ``image_grid_thw``: int64 [images, 3] (1, rows, columns).
        pixel_values_videos, video_grid_thw: the same of videos (frames, rows, columns).
        mm_token_type_ids: int64 [B, S]: 0 text, 1 at image placeholders, 2 at those of videos. None: found by their ids.
        moe_mm_token_type_ids: int64 [B, S], not 0 for tokens of the vision experts. None: placeholders and the begin and end
            tokens around them.
    """

    pixel_values: Tensor | None = None
    image_grid_thw: Tensor | None = None
    pixel_values_videos: Tensor | None = None
    video_grid_thw: Tensor | None = None
    mm_token_type_ids: Tensor | None = None
    moe_mm_token_type_ids: Tensor | None = None

    def grids(self, merge: int) -> dict[int, list[Grid]]:
        """Of each kind that is there. Raises ``ValueError`` for pixels without grids and the reverse."""
        found = {}
        pairs = {
            IMAGE: (self.pixel_values, self.image_grid_thw, "image_grid_thw"),
            VIDEO: (self.pixel_values_videos, self.video_grid_thw, "video_grid_thw"),
        }
        for kind, (pixels, values, name) in pairs.items():
            if (pixels is None) != (values is None):
                raise ValueError(f"pixels and {name} belong together: one of them is missing")
            if pixels is not None and values is not None:
                found[kind] = read_grids(values.numpy(), kind, merge)
        return found


class VlDecoder(MoeDecoder):
    """The stack of layers, and the resampler, which files keep below it."""

    def __init__(self, arch: VlArchitecture, config: RouterSection) -> None:
        super().__init__(arch, config, make_layer)
        self.resampler_model = Resampler(arch)

    def embed(self, input_ids: Tensor, context: Context) -> Tensor:
        """Token embeddings, with image embeddings in place of the placeholders."""
        x_BSH = super().embed(input_ids, context)
        if not isinstance(context, VlContext) or context.images is None:
            return x_BSH
        rows = paddle.concat([x_BSH.reshape([-1, x_BSH.shape[-1]]), context.images])
        return paddle.gather(rows, context.places).reshape(x_BSH.shape)


class Ernie45VlForConditionalGeneration(Ernie45MoeForCausalLM):
    """The vision-language model; implements ``erniecore.api.model.CausalLM`` with further inputs. New models have their vision
    part frozen: see :meth:`train_vision`."""

    def __init__(self, arch: VlArchitecture, config: RouterSection, *, dtype: str = "float32") -> None:
        super().__init__(arch, config, lambda: VlDecoder(arch, config), dtype=dtype)
        self.vl = arch
        with default_dtype(dtype):
            self.vision_model = VisionTower(arch)
        self.train_vision(False)

    def train_vision(self, on: bool) -> None:
        """Whether tower, resampler, vision routers and vision experts are trained. Batches of text reach none of them."""
        for name, parameter in self.named_parameters():
            if is_vision(name):
                parameter.stop_gradient = not on

    def forward(self, input_ids: Tensor, *args: Any, **inputs: Any) -> Tensor:
        """float32 logits [B, S, V]; inputs as for :meth:`features`."""
        names = ("position_ids", "attention_mask", "startend_row_indices", "cache")
        features = self.features(input_ids, **dict(zip(names, args, strict=False)), **inputs)
        return self.logits(features.hidden)

    def features(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        startend_row_indices: Tensor | None = None,
        cache: Cache | None = None,
        **inputs: Tensor | None,
    ) -> Features:
        """Everything below the head.

        Args:
            position_ids: [B, S], or [B, S, 3] as (time, height, width). Left out, text counts up, and rows with images
                get the positions of ``positions.token_positions``; while decoding after images they must be given.
            inputs: fields of :class:`VisionInputs`; for the pass whose ids hold the placeholders.
        Raises:
            ValueError: pixels, grids and placeholders that do not fit each other.
        """
        seen = VisionInputs(**inputs)
        grids = seen.grids(self.vl.vision.merge)
        masks = {"attention_mask": attention_mask, "startend_row_indices": startend_row_indices}
        if grids:
            self.check_markers({IMAGE: "image", VIDEO: "video_"}[kind] for kind in grids)
        else:
            context = self.make_context(input_ids, position_ids=position_ids, cache=cache, **masks)
            return self.run(input_ids, context)
        ids_BS, kinds_BS = input_ids.numpy(), self.kinds(input_ids, seen)
        if position_ids is None:
            position_ids, _ = self.positions(input_ids, attention_mask=attention_mask, **inputs)
        context = self.make_context(input_ids, position_ids=position_ids, cache=cache, **masks)
        given = seen.moe_mm_token_type_ids
        routed_BS = routed_as_vision(ids_BS, kinds_BS, self.vl.markers) if given is None else given.numpy() != 0
        vision = {"images": self.encode_images(seen, grids), "places": self.places(kinds_BS, grids)}
        context = VlContext.of(context, vision=paddle.to_tensor(routed_BS), **vision)
        return self.run(input_ids, context)

    def check_markers(self, kinds: Iterable[str]) -> None:
        """Raises ``ValueError`` if the vocabulary lacks tokens for images; ``kinds``: what the names of those needed begin
        with."""
        needed = tuple(kinds)
        for name, token in asdict(self.vl.markers).items():
            if name.startswith(needed) and token >= self.vl.vocab_size:
                raise ValueError(f"the vocabulary of {self.vl.vocab_size} has no token for images: {name} is {token}")

    def positions(
        self, input_ids: Tensor, *, attention_mask: Tensor | None = None, **inputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Positions int64 [B, S, 3] of rows with images, and int64 [B], the position of the token that follows each: where
        decoding goes on, the same on all axes."""
        seen, real_BS = VisionInputs(**inputs), None if attention_mask is None else attention_mask.numpy() != 0
        merge = self.vl.vision.merge
        found = token_positions(self.kinds(input_ids, seen), seen.grids(merge), merge, real_BS)
        positions_BS3, following_B = map(paddle.to_tensor, found)
        return positions_BS3, following_B

    def make_context(
        self, input_ids: Tensor, *, cache: Cache | None, position_ids: Tensor | None = None, **masks: Tensor | None
    ) -> Context:
        """As in text models; positions on three axes change the rotary tables only."""
        if position_ids is None or position_ids.ndim == 2:
            return super().make_context(input_ids, cache=cache, position_ids=position_ids, **masks)
        context = super().make_context(input_ids, cache=cache, position_ids=None, **masks)
        head_dim = self.arch.head_dim
        axes = ops.axes_by_parity(head_dim, self.vl.time_pairs)
        cos, sin = ops.rope_tables_3d(position_ids, head_dim, self.arch.rope_theta, axes)
        return replace(context, cos=cos, sin=sin)

    def kinds(self, input_ids: Tensor, seen: VisionInputs) -> Ints:
        """0, 1 or 2 for each token: see :class:`VisionInputs`."""
        if seen.mm_token_type_ids is not None:
            return np.asarray(seen.mm_token_type_ids.numpy())
        return kinds_of(input_ids.numpy(), self.vl.markers)

    def encode_images(self, seen: VisionInputs, grids: dict[int, list[Grid]]) -> Tensor:
        """Tokens [M, H] of all images, then of all videos."""
        pixels = {IMAGE: seen.pixel_values, VIDEO: seen.pixel_values_videos}
        found = [self.model.resampler_model(self.vision_model(pixels[k], grids[k]), grids[k]) for k in grids]
        return paddle.concat(found)

    def places(self, kinds_BS: Ints, grids: dict[int, list[Grid]]) -> Tensor:
        """For each token its row among embeddings and the images behind them.

        Raises ``ValueError`` for another number of placeholders than of tokens of images."""
        kinds_T = kinds_BS.reshape(-1)
        places_T, start = np.arange(len(kinds_T)), len(kinds_T)
        for kind, found in grids.items():
            count = sum(grid.merged(self.vl.vision.merge).size for grid in found)
            at = np.flatnonzero(kinds_T == kind)
            if len(at) != count:
                raise ValueError(f"{len(at)} placeholders for {count} image tokens")
            places_T[at] = np.arange(start, start + count)
            start += count
        return paddle.to_tensor(places_T)


#: parts of the names of parameters that are used for images only
VISION_PARTS = ("vision_model.", ".resampler_model.", ".vision_experts.", ".gate.weight_1")


def is_vision(name: str) -> bool:
    """Whether this parameter is used for images only."""
    return any(part in name for part in VISION_PARTS)
