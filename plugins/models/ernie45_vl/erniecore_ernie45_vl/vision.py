"""The vision tower: patches of images of any size -> one vector per patch. It sees each frame by itself, in both
directions, and knows a patch's place by rotary positions on two axes.

Letters: N patches, C width of the tower, d head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import paddle  # noqa: TID253
from erniecore_ernie45.layers import call, linear
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ops
from erniecore.api.layers import recompute
from erniecore_ernie45_vl.architecture import SeeingArchitecture, VisionArchitecture
from erniecore_ernie45_vl.positions import Grid, Ints, patch_places

#: of the rotary positions in every tower of this family
THETA = 10000.0


class Norm(nn.LayerNorm):  # type: ignore[misc]
    """Layer norm in float32, whatever the dtype of the weights (arXiv:1607.06450)."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__(size, epsilon=epsilon)
        self.small = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> the same shape and dtype."""
        return ops.layer_norm(x, self.weight, self.bias, self.small)


class Frames(NamedTuple):
    """What all blocks share: rotary tables float32 [1, N, d/2], and the patches of each frame."""

    cos: Tensor
    sin: Tensor
    lengths: list[int]


class PatchEmbed(nn.Layer):  # type: ignore[misc]
    """A patch's numbers, flattened as (channel, row, column), through one matrix."""

    def __init__(self, arch: SeeingArchitecture) -> None:
        super().__init__()
        self.proj = linear(arch, arch.vision.patch_values, arch.vision.hidden_size, False)
        self.compute_dtype = self.proj.weight.dtype  # a quantizer may take the place of the matrix

    def forward(self, pixels_NP: Tensor) -> Tensor:
        """float32 [N, values of a patch] -> [N, C] in the dtype that the model computes in."""
        return self.proj(pixels_NP.astype(self.compute_dtype))


class VisionAttention(nn.Layer):  # type: ignore[misc]
    """Every patch of a frame sees all patches of that frame."""

    def __init__(self, arch: SeeingArchitecture) -> None:
        super().__init__()
        size = arch.vision.hidden_size
        self.head_dim = arch.vision.head_dim
        self.qkv = linear(arch, size, 3 * size, True)
        self.proj = linear(arch, size, size, True)

    def forward(self, x_NC: Tensor, frames: Frames) -> Tensor:
        """[N, C] -> [N, C]."""
        seen_NC = ops.patch_attention(self.qkv(x_NC), frames.cos, frames.sin, frames.lengths, self.head_dim)
        return self.proj(seen_NC)


class VisionMLP(nn.Layer):  # type: ignore[misc]
    """fc2(z * sigmoid(1.702 z)) with z = fc1(x)."""

    def __init__(self, arch: SeeingArchitecture) -> None:
        super().__init__()
        self.fc1 = linear(arch, arch.vision.hidden_size, arch.vision.intermediate_size, True)
        self.fc2 = linear(arch, arch.vision.intermediate_size, arch.vision.hidden_size, True)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C] -> [N, C]."""
        z = self.fc1(x)
        active = self.activate(z)
        with ops.rematerialized(active, lambda: self.activate(z)):
            return self.fc2(active)

    def activate(self, z: Tensor) -> Tensor:
        """Elementwise; other towers have another one."""
        return ops.quick_gelu(z)


class VisionBlock(nn.Layer):  # type: ignore[misc]
    """Attention and MLP, each after a norm and added to the stream."""

    def __init__(self, arch: SeeingArchitecture) -> None:
        super().__init__()
        size, epsilon = arch.vision.hidden_size, arch.vision.norm_eps
        self.norm1, self.norm2 = Norm(size, epsilon), Norm(size, epsilon)
        self.attn, self.mlp = VisionAttention(arch), self.make_mlp(arch)

    def make_mlp(self, arch: SeeingArchitecture) -> nn.Layer:
        """The layer behind attention; other towers have another activation."""
        return VisionMLP(arch)

    def forward(self, x_NC: Tensor, frames: Frames) -> Tensor:
        """[N, C] -> [N, C]."""
        x_NC = self.attend(x_NC, frames)
        normed_NC = self.norm2(x_NC)
        with ops.rematerialized(normed_NC, lambda: self.norm2(x_NC)):
            return x_NC + self.mlp(normed_NC)

    def attend(self, x_NC: Tensor, frames: Frames) -> Tensor:
        """The stream after attention."""
        normed_NC = self.norm1(x_NC)
        with ops.rematerialized(normed_NC, lambda: self.norm1(x_NC)):
            return x_NC + self.attn(normed_NC, frames)


class VisionTower(nn.Layer):  # type: ignore[misc]
    """Embedding of patches, blocks, final norm (the tower of arXiv:2309.17425 with rotary positions)."""

    def __init__(self, arch: SeeingArchitecture) -> None:
        super().__init__()
        self.arch: VisionArchitecture = arch.vision
        self.patch_embed = self.make_patch_embed(arch)
        self.blocks = nn.LayerList([self.make_block(arch) for _ in range(arch.vision.depth)])
        self.ln = Norm(arch.vision.hidden_size, arch.vision.norm_eps)

    def make_patch_embed(self, arch: SeeingArchitecture) -> nn.Layer:
        """What makes patches vectors."""
        return PatchEmbed(arch)

    def make_block(self, arch: SeeingArchitecture) -> nn.Layer:
        """One of the blocks."""
        return VisionBlock(arch)

    def embed(self, pixels_NP: Tensor, grids: Sequence[Grid]) -> Tensor:
        """What enters the first block, [N, C]."""
        x_NC: Tensor = self.patch_embed(pixels_NP)
        return x_NC

    def places(self, grids: Sequence[Grid]) -> Ints:
        """Row and column [N, 2] of every patch, in the order in which they come."""
        return patch_places(grids, self.arch.merge)

    def forward(self, pixels_NP: Tensor, grids: Sequence[Grid], *, again: bool = False) -> Tensor:
        """Patches of all images one after the other, squares of patches together -> [N, C].

        ``again``: the backward pass computes each block again instead of reading it from memory.
        Raises ``ValueError`` for grids of another number of patches."""
        total = sum(grid.size for grid in grids)
        if total != pixels_NP.shape[0]:
            raise ValueError(f"the grids have {total} patches, the pixels {pixels_NP.shape[0]}")
        x_NC = self.embed(pixels_NP, grids)
        frames, run = self.frames(grids), recompute if again else call
        for block in self.blocks:
            x_NC = run(block, x_NC, frames)
        return self.ln(x_NC)

    def frames(self, grids: Sequence[Grid]) -> Frames:
        """Rotary tables and attention windows of these images."""
        places_1N2 = paddle.to_tensor(self.places(grids)[None].astype(np.int64))
        lengths = [grid.rows * grid.columns for grid in grids for _ in range(grid.frames)]
        return Frames(*ops.rope_tables_2d(places_1N2, self.arch.head_dim, THETA), lengths)
