"""What makes a decoder a model that sees: images and videos take the places of their placeholders in the stream, with positions
on three axes. The vision tower and what brings its output to the width of the stream are the model's.

Letters: B batch, S new positions, H hidden, N patches, M tokens of images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import paddle  # noqa: TID253
from erniecore_ernie45.context import Context
from erniecore_ernie45.model import Ernie45ForCausalLM
from paddle import Tensor  # noqa: TID253

from erniecore.api import ops
from erniecore.api.model import Cache, Features
from erniecore.api.parallel import ShardedIds
from erniecore_ernie45_vl.architecture import SeeingArchitecture
from erniecore_ernie45_vl.image_shares import ImageShares, padded
from erniecore_ernie45_vl.positions import IMAGE, VIDEO, Grid, Ints, kinds_of, read_grids, token_positions


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


@dataclass(frozen=True, slots=True)
class SeeingContext(Context):
    """What layers share.

    Attributes:
        images: [M, H], what stands in the stream instead of embeddings, and ``places``: int64 [B S], for each token its
            row among embeddings (first) and images (behind them); None where there are no images.
    """

    images: Tensor | None = None
    places: Tensor | None = None

    @classmethod
    def of(cls, context: Context, **vision: Any) -> SeeingContext:
        """``context`` with what images add."""
        return cls(**{field.name: getattr(context, field.name) for field in fields(Context)}, **vision)

    def put_images(self, x_BSH: Tensor) -> Tensor:
        """Embeddings with those of images in place of the placeholders."""
        if self.images is None:
            return x_BSH
        rows = paddle.concat([x_BSH.reshape([-1, x_BSH.shape[-1]]), self.images])
        return paddle.gather(rows, self.places).reshape(x_BSH.shape)


class SeeingModel(Ernie45ForCausalLM):
    """A ``erniecore.api.model.CausalLM`` with further inputs. A model derives from this before the text model that it extends.

    Attributes:
        vl: the architecture.
        reads_images: see ``Stages.seeing`` of ``erniecore.api.model``.
    """

    vl: SeeingArchitecture
    reads_images: bool = True

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
            inputs: fields of :class:`VisionInputs`; for passes whose ids are of a prompt with images. One without any
                placeholders needs the kinds of its tokens alone.
        Raises:
            ValueError: pixels, grids and placeholders that do not fit each other.
        """
        seen = VisionInputs(**inputs)
        grids = seen.grids(self.vl.vision.merge)
        masks = {"attention_mask": attention_mask, "startend_row_indices": startend_row_indices}
        self.check_markers({IMAGE: "image", VIDEO: "video_"}[kind] for kind in grids)
        if all(value is None for value in seen):
            context = self.make_context(input_ids, position_ids=position_ids, cache=cache, **masks)
            return self.run(input_ids, context)
        rows = ops.sharded_ids.of(input_ids)
        ids_BS = input_ids.numpy() if rows is None else rows.ids
        kinds_BS = self.kinds(ids_BS, seen)
        if position_ids is None:
            position_ids, _ = self.positions(input_ids, attention_mask=attention_mask, **inputs)
        context = self.make_context(input_ids, position_ids=position_ids, cache=cache, **masks)
        images = places = None
        if grids and self.reads_images:
            images, places = self.encoded(seen, grids, rows), self.places(kinds_BS, grids, rows)
        return self.run(input_ids, self.see(context, seen, ids_BS, kinds_BS, images, places, rows))

    def elastic_sizes(self) -> None:
        """It runs as a whole only."""

    def see(
        self,
        context: Context,
        seen: VisionInputs,
        ids_BS: Ints,
        kinds_BS: Ints,
        images: Tensor | None,
        places: Tensor | None,
        rows: ShardedIds | None,
    ) -> SeeingContext:
        """The context of a batch with images; without ``images`` there are none in it, or they are in the stream already. Ids and
        kinds are those of whole sequences, of which ``rows`` says what is here."""
        return SeeingContext.of(context, images=images, places=places)

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
        found = token_positions(self.kinds(input_ids.numpy(), seen), seen.grids(merge), merge, real_BS)
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
        cos, sin = ops.rope_tables_3d(position_ids, head_dim, self.arch.rope_theta, self.axes())
        return replace(context, cos=cos, sin=sin)

    def kinds(self, ids_BS: Ints, seen: VisionInputs) -> Ints:
        """0, 1 or 2 for each token, 0 at padding behind those of ``seen``: see :class:`VisionInputs`."""
        if seen.mm_token_type_ids is None:
            return kinds_of(ids_BS, self.vl.markers)
        return padded(np.asarray(seen.mm_token_type_ids.numpy()), ids_BS.shape[1])

    def encoded(self, seen: VisionInputs, grids: dict[int, list[Grid]], rows: ShardedIds | None) -> Tensor:
        """As :meth:`encode_images`; of ranks that share sequences each computes some of the images, about as many patches."""
        if rows is None or rows.num_ranks == 1:
            return self.encode_images(seen, grids)
        shares = ImageShares.of(grids, self.vl.vision.merge, rows.num_ranks)
        here_MH = self.encode_images(*shares.part(seen, grids, rows.rank))
        missing = paddle.zeros([shares.longest - here_MH.shape[0], here_MH.shape[1]], here_MH.dtype)
        return paddle.gather(rows.gathered(paddle.concat([here_MH, missing])), paddle.to_tensor(shares.order))

    def encode_images(self, seen: VisionInputs, grids: dict[int, list[Grid]]) -> Tensor:
        """Tokens [M, H] of all images, then of all videos."""
        raise NotImplementedError

    @property
    def tower_again(self) -> bool:
        """Whether the backward pass computes the blocks of the tower again, as it does those of the decoder."""
        again: bool = self.recompute_granularity == "full" and self.training and paddle.is_grad_enabled()
        return again

    def axes(self) -> Sequence[int]:
        """Of each rotary pair the axis that it follows: 0 time, 1 height, 2 width."""
        raise NotImplementedError

    def places(self, kinds_BS: Ints, grids: dict[int, list[Grid]], rows: ShardedIds | None) -> Tensor:
        """For each token here its row among embeddings and the images behind them.

        Raises ``ValueError`` for another number of placeholders than of tokens of images."""
        numbers_BS, start = np.full(kinds_BS.shape, 0), 1  # of the tokens of images from 1; 0: text
        for kind, found in grids.items():
            count = sum(grid.merged(self.vl.vision.merge).size for grid in found)
            at = np.flatnonzero(kinds_BS == kind)
            if len(at) != count:
                raise ValueError(f"{len(at)} placeholders for {count} image tokens")
            numbers_BS.reshape(-1)[at] = np.arange(start, start + count)
            start += count
        numbers_T = (numbers_BS if rows is None else rows.inner(numbers_BS)).reshape(-1)
        size = len(numbers_T)
        return paddle.to_tensor(np.where(numbers_T, size + numbers_T - 1, np.arange(size)))
