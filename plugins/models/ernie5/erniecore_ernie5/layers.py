"""Layers of ERNIE 5.0: those of the mixture-of-experts text model with attention by groups, loads of experts by modality, and
what brings images and frames into the hidden states and out of them.

Letters: B batch, S positions, H hidden, d values of a patch, L levels, K codes of a level, M modalities.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_ernie45.context import Context
from erniecore_ernie45.layers import Attention, DecoderLayer, linear, normal
from erniecore_ernie45_moe.config import RouterSection
from erniecore_ernie45_moe.layers import MoeBlock, MoeDecoderLayer, reduced_of
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ops
from erniecore_ernie5.architecture import Ernie5Architecture
from erniecore_ernie5.groups import Slots, grouped_attention
from erniecore_ernie5.reading import ReadingPaths
from erniecore_ernie5.sequence import DRAWN, READ

if TYPE_CHECKING:
    from erniecore_ernie5.depth import DepthPass


@dataclass(frozen=True, slots=True)
class GroupContext(Context):
    """What layers share.

    Attributes:
        slots: of the groups; None: every token is one by itself.
        modalities: float32 [B, S, M], 1 at the modality of each token. media: what enters the hidden states, [B, S, H].
        depth: the levels of the next frames.
    """

    slots: Slots | None = None
    modalities: Tensor | None = None
    media: Tensor | None = None
    depth: DepthPass | None = None

    @classmethod
    def of(cls, context: Context, **further: Any) -> GroupContext:
        """The context with what is known of the tokens."""
        return cls(**{field.name: getattr(context, field.name) for field in fields(Context)}, **further)


class GroupAttention(Attention):
    """Causal between groups, to all tokens within one."""

    def weigh(self, q_BShd: Tensor, k_BKkd: Tensor, v_BKkd: Tensor, context: Context) -> Tensor:
        if isinstance(context, GroupContext) and context.slots is not None:
            return grouped_attention(q_BShd, k_BKkd, v_BKkd, context.slots)
        return super().weigh(q_BShd, k_BKkd, v_BKkd, context)


class GroupLayer(DecoderLayer):
    """A layer without experts, with attention by groups."""

    attention = GroupAttention


class GroupMoeLayer(MoeDecoderLayer):
    """A layer with experts: one router for all tokens, which knows nothing of modalities."""

    attention = GroupAttention

    def mix(self, normed_BSH: Tensor, context: Context) -> tuple[Any, ...]:
        reduced = None if context.submodel is None else reduced_of(context.submodel, self.self_attn.index)
        modalities = context.modalities if isinstance(context, GroupContext) else None
        mixed: tuple[Any, ...] = self.mlp(normed_BSH, context.real, reduced, modalities)
        return mixed


def make_layer(arch: Ernie5Architecture, config: RouterSection, index: int, *, like: int | None = None) -> DecoderLayer:
    """Layer ``index``, dense or a mixture of experts like layer ``like`` (by default: as its own place says)."""
    if arch.is_moe(index if like is None else like):
        return GroupMoeLayer(arch, index, MoeBlock(arch, config))
    return GroupLayer(arch, index)


class Embedded(nn.Layer):  # type: ignore[misc]
    """An embedding of codes that are counted from 1; code 0 is no code, and gives zeros.

    The parameter is ``embedding``, not ``weight``: quantizers take matrices of that name for those of linear layers.
    """

    def __init__(self, arch: Ernie5Architecture, num_codes: int) -> None:
        super().__init__()
        shape = [num_codes, arch.hidden_size]
        self.embedding = self.create_parameter(shape, attr=normal(arch), dtype=paddle.get_default_dtype())

    def forward(self, codes: Tensor) -> Tensor:
        """int64 [...] -> [..., H]."""
        rows = ops.embedding((codes - 1).clip(min=0, max=self.embedding.shape[0] - 1), self.embedding)
        there = (codes > 0) & (codes <= self.embedding.shape[0])
        return rows * there.astype(rows.dtype).unsqueeze(-1)


class ImagePart(nn.Layer):  # type: ignore[misc]
    """Tokens of images into hidden states, and the bits that hidden states predict.

    Attributes:
        read: what images that are read go through; None: the same as those that are drawn.
    """

    def __init__(self, arch: Ernie5Architecture) -> None:
        super().__init__()
        self.read = ReadingPaths(arch) if arch.read_layers else None
        self.embed = linear(arch, arch.image.width, arch.hidden_size, True)
        self.scales = Embedded(arch, len(arch.image.scales) + 1)
        self.head = linear(arch, arch.hidden_size, arch.image.width, True)

    def forward(self, values_BSd: Tensor, scales_BS: Tensor, kinds_BS: Tensor) -> Tensor:
        """Values of tokens, their scales, counted from 0, and kinds (``sequence.py``) -> [B, S, H], zeros where no token of an
        image is."""
        x_BSH = self.embed(values_BSd.astype(self.embed.weight.dtype))
        if self.read is not None:
            x_BSH = self._with_read(self.read, x_BSH, values_BSd, kinds_BS)
        there_BS = (kinds_BS == DRAWN) | (kinds_BS == READ)
        return (x_BSH + self.scales(scales_BS + 1)) * there_BS.astype(x_BSH.dtype).unsqueeze(-1)

    def _with_read(self, read: ReadingPaths, x_BSH: Tensor, values_BSd: Tensor, kinds_BS: Tensor) -> Tensor:
        """``x_BSH`` with what the paths make of the images that are read in their place; a pass has whole images."""
        (where,) = np.nonzero(kinds_BS.numpy().ravel() == READ)
        if not len(where):
            return x_BSH
        rows, grid, width = paddle.to_tensor(where), read.image.grid, read.image.width
        images = values_BSd.reshape([-1, width]).gather(rows).reshape([-1, grid, grid, width])
        found = read(images.astype(x_BSH.dtype)).reshape([-1, x_BSH.shape[-1]])
        return paddle.scatter(x_BSH.reshape([-1, x_BSH.shape[-1]]), rows, found).reshape(x_BSH.shape)


class AudioPart(nn.Layer):  # type: ignore[misc]
    """Frames into hidden states, as the sum of the embeddings of their codes; a head for each level, and the embeddings by which
    a level enters before the next one. The head of the first level has one class more: there are no more frames."""

    def __init__(self, arch: Ernie5Architecture) -> None:
        super().__init__()
        count, levels = arch.audio.num_codes, range(arch.audio.levels)
        self.embed = nn.LayerList([Embedded(arch, count) for _ in levels])
        self.enter = nn.LayerList([Embedded(arch, count) for _ in levels[:-1]])
        self.heads = nn.LayerList([linear(arch, arch.hidden_size, count + (not level), True) for level in levels])

    def forward(self, codes_BSL: Tensor) -> Tensor:
        """int64, counted from 1 -> [B, S, H], zeros where no frame is."""
        return paddle.add_n([embed(codes_BSL[..., level]) for level, embed in enumerate(self.embed)])
