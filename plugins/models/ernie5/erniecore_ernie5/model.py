"""ERNIE 5.0 (arXiv:2602.04705) as one autoregressive model of text, images and audio: the mixture-of-experts text model with
attention by groups of tokens, one router for all of them, bits of images and codes of frames. Text alone takes the path of the
text model. Single-device code; losses, drawing and files are elsewhere.

Letters: B batch, S new positions, H hidden, d values of a patch, L levels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_ernie45.context import Context, end_rows_of_restarts, real_positions
from erniecore_ernie45.model import default_dtype
from erniecore_ernie45.submodel import submodel_of
from erniecore_ernie45_moe.config import RouterSection
from erniecore_ernie45_moe.model import Ernie45MoeForCausalLM
from erniecore_ernie45_moe.mtp import MoeDecoder
from paddle import Tensor  # noqa: TID253

from erniecore.api import ops
from erniecore.api.model import Cache, Features
from erniecore_ernie5.architecture import Ernie5Architecture
from erniecore_ernie5.balance import ModalBalancer
from erniecore_ernie5.depth import Choose, DepthPass
from erniecore_ernie5.groups import make_slots
from erniecore_ernie5.layers import AudioPart, GroupContext, ImagePart, make_layer
from erniecore_ernie5.sequence import MODALITIES


@dataclass(frozen=True, slots=True)
class MediaFeatures(Features):
    """What the model computes before its heads.

    Attributes:
        levels: [B, S, H] after the final norm, what the head of each level of a frame reads; empty without tokens of media.
    """

    levels: tuple[Tensor, ...] = ()


class Ernie5Decoder(MoeDecoder):
    """The stack of layers, with images and frames among the token embeddings, and levels of frames in the top layers."""

    def __init__(self, arch: Ernie5Architecture, config: RouterSection) -> None:
        super().__init__(arch, config, make_layer)

    def embed(self, input_ids: Tensor, context: Context) -> Tensor:
        """Token embeddings, or what stands for a token of an image or a frame."""
        x_BSH = super().embed(input_ids, context)
        if not isinstance(context, GroupContext) or context.media is None or context.modalities is None:
            return x_BSH
        return x_BSH * context.modalities[..., :1].astype(x_BSH.dtype) + context.media

    def between(self, place: int, x_BSH: Tensor, context: Context) -> Tensor:
        """Codes of a level enter above its layer."""
        depth = context.depth if isinstance(context, GroupContext) else None
        return x_BSH if depth is None else depth.step(place, x_BSH)


class Ernie5ForCausalLM(Ernie45MoeForCausalLM):
    """Implements ``erniecore.api.model.CausalLM`` with further inputs.

    Attributes:
        image, audio: what brings images and frames in and out.
    """

    media_arch: Ernie5Architecture

    def __init__(self, arch: Ernie5Architecture, config: RouterSection, *, dtype: str = "float32") -> None:
        super().__init__(arch, config, lambda: Ernie5Decoder(arch, config), dtype=dtype)
        self.media_arch = arch
        with default_dtype(dtype):
            self.image, self.audio = ImagePart(arch), AudioPart(arch)
        self.balancer = ModalBalancer(config.bias_update_rate if arch.aux_free else 0.0)

    def features(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        startend_row_indices: Tensor | None = None,
        cache: Cache | None = None,
        kinds: Tensor | None = None,
        choose: Choose | None = None,
        layers: Tensor | None = None,
        experts: Tensor | None = None,
        num_selected: Tensor | None = None,
        **media: Tensor,
    ) -> Features:
        """Everything below the heads; without ``kinds`` of a text, as ``Ernie45ForCausalLM.features``.

        Args:
            kinds: [B, S], see ``sequence.py``. media: the other fields of its tokens, by name, but for ``bits``.
            choose: the codes of the next frame, level by level, in place of ``next_codes``, which then may be left out.
        """
        masks = {
            "position_ids": position_ids,
            "attention_mask": attention_mask,
            "startend_row_indices": startend_row_indices,
        }
        submodel = submodel_of(layers, experts, num_selected)
        if kinds is None:
            context = self.make_context(input_ids, cache=cache, **masks)
            return self.run(input_ids, context if submodel is None else replace(context, submodel=submodel))
        context = self.media_context(input_ids, kinds, media, choose, cache=cache, **masks)
        context = context if submodel is None else replace(context, submodel=submodel)
        features = self.run(input_ids, context)
        levels = tuple(self.model.norm(hidden) for hidden in context.depth.hidden) if context.depth else ()
        return MediaFeatures(features.hidden, features.mtp_hidden, features.auxiliary, features.residual, levels)

    def media_context(
        self,
        input_ids: Tensor,
        kinds: Tensor,
        media: dict[str, Tensor],
        choose: Choose | None,
        *,
        cache: Cache | None,
        position_ids: Tensor | None,
        attention_mask: Tensor | None,
        startend_row_indices: Tensor | None,
    ) -> GroupContext:
        """What layers share in a pass over tokens of several kinds."""
        past = 0 if cache is None else cache.length
        if attention_mask is not None or (past and startend_row_indices is not None):
            raise ValueError("rows with media have startend_row_indices, or a cache, and no attention_mask")
        if startend_row_indices is None and position_ids is not None and not past:
            startend_row_indices = end_rows_of_restarts(position_ids)
        ends = startend_row_indices
        arch, head_dim = self.media_arch, self.arch.head_dim
        axes = ops.axes_by_parity(head_dim, arch.time_pairs)
        cos, sin = ops.rope_tables_3d(media["axes"], head_dim, self.arch.rope_theta, axes)
        learning = self.training and cache is None and paddle.is_grad_enabled()
        plain = Context(
            cos,
            sin,
            startend_row_indices=ends,
            cache=cache,
            real=real_positions(input_ids.shape[1], None, ends),
            recompute=self.recompute_granularity if learning else "none",
        )
        ends_BS = None if ends is None else ends.numpy()[:, 0, :, 0]
        return GroupContext.of(
            plain,
            slots=make_slots(media["joined"].numpy(), ends_BS, past),
            modalities=modalities_of(kinds),
            media=self.embed_media(kinds, media),
            depth=DepthPass(self.audio.enter, arch.num_hidden_layers, choose or given(media["next_codes"])),
        )

    def embed_media(self, kinds: Tensor, media: dict[str, Tensor]) -> Tensor:
        """[B, S, H] of images and frames, zeros at text."""
        images = self.image(media["values"], media["scales"].astype("int64"), kinds)
        frames: Tensor = self.audio(media["codes"].astype("int64"))
        return images + frames

    def bit_logits(self, hidden: Tensor) -> Tensor:
        """float32 [..., d]: log odds that a bit is 1, of hidden states [..., H] after the final norm."""
        logits: Tensor = self.image.head(hidden).astype("float32")
        return logits

    def code_logits(self, level: int, hidden: Tensor) -> Tensor:
        """float32 [..., K] of a level, of hidden states [..., H] after the final norm; class 0 is code 1. The first level has one
        class more, the end."""
        logits: Tensor = self.audio.heads[level](hidden).astype("float32")
        return logits


def given(next_codes: Tensor) -> Choose:
    """Codes that are known, as in training; the end is none."""
    codes_BSL = next_codes.astype("int64")
    return lambda level, hidden: codes_BSL[..., level]


def modalities_of(kinds: Tensor) -> Tensor:
    """float32 [B, S, M], 1 at the modality of each token."""
    found: Any = kinds.numpy()
    columns = [np.isin(found, kinds_of) for kinds_of in MODALITIES.values()]
    return paddle.to_tensor(np.stack(columns, axis=-1).astype(np.float32))
