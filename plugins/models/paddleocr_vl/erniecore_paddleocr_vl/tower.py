"""The vision tower and what brings its output to the stream of the text model: patches of images of any size, with learned
positions that are resized to the image and rotary ones on top; then squares of patches become one token.

Letters: N patches, M tokens, C width of the tower, h and w patches of an image, s side of the learned table, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle  # noqa: TID253
from erniecore_ernie45.layers import linear, normal
from erniecore_ernie45_vl.architecture import SeeingArchitecture
from erniecore_ernie45_vl.positions import Grid, Ints
from erniecore_ernie45_vl.vision import Norm, VisionBlock, VisionMLP, VisionTower
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ops
from erniecore_paddleocr_vl.architecture import OcrArchitecture

#: of the norm before squares are put together; config.json does not name it
EPSILON = 1e-5


class OcrMLP(VisionMLP):
    """fc2(gelu(fc1(x))), with the approximation of the GELU by tanh (arXiv:1606.08415)."""

    def activate(self, z: Tensor) -> Tensor:
        return ops.gelu(z, approximate=True)


class OcrBlock(VisionBlock):
    """Attention and MLP, each after a norm and added to the stream."""

    def make_mlp(self, arch: SeeingArchitecture) -> nn.Layer:
        return OcrMLP(arch)


class PatchEmbed(nn.Layer):  # type: ignore[misc]
    """A patch's numbers, flattened as (channel, row, column), through one matrix, and the learned position of its place.

    The table of s x s positions is resized to each image: bilinear, between the centers of its cells."""

    def __init__(self, arch: OcrArchitecture) -> None:
        super().__init__()
        size, self.side = arch.vision.hidden_size, arch.table_side
        self.proj = linear(arch, arch.vision.patch_values, size, True)
        self.compute_dtype = self.proj.weight.dtype  # a quantizer may take the place of the matrix
        shape = [self.side**2, size]
        self.positions = self.create_parameter(shape, attr=normal(arch), dtype=paddle.get_default_dtype())

    def forward(self, pixels_NP: Tensor, grids: Sequence[Grid]) -> Tensor:
        """float32 [N, values of a patch] -> [N, C] in the dtype that the model computes in."""
        x_NC = self.proj(pixels_NP.astype(self.compute_dtype))
        of_size = {grid: self.places(grid) for grid in dict.fromkeys(grids)}
        return x_NC + paddle.concat([of_size[grid] for grid in grids]).astype(x_NC.dtype)

    def places(self, grid: Grid) -> Tensor:
        """The table for an image, float32 [h w, C], row by row."""
        table_ssC = self.positions.astype("float32").reshape([self.side, -1])
        rows_hs, columns_ws = (paddle.to_tensor(weights(n, self.side)) for n in (grid.rows, grid.columns))
        rows_hsC = paddle.matmul(rows_hs, table_ssC).reshape([grid.rows, self.side, -1])
        return paddle.matmul(columns_ws, rows_hsC).reshape([grid.rows * grid.columns, -1])


def weights(count: int, side: int) -> Ints:
    """Of each of ``side`` positions at each of ``count`` places, float32 [count, side]; places beyond the first and last
    center get that one."""
    at = np.clip((np.arange(count, dtype=np.float32) + 0.5) * np.float32(side / count) - 0.5, 0, side - 1)
    low = np.floor(at).astype(np.int64)
    share = (at - low).astype(np.float32)
    found = np.zeros((count, side), np.float32)
    found[np.arange(count), low] = 1 - share
    found[np.arange(count), np.minimum(low + 1, side - 1)] += share
    return found


class OcrTower(VisionTower):
    """Embedding of patches, blocks, final norm (NaViT, arXiv:2307.06304). Patches come row by row."""

    def make_patch_embed(self, arch: SeeingArchitecture) -> nn.Layer:
        assert isinstance(arch, OcrArchitecture)
        return PatchEmbed(arch)

    def make_block(self, arch: SeeingArchitecture) -> nn.Layer:
        return OcrBlock(arch)

    def embed(self, pixels_NP: Tensor, grids: Sequence[Grid]) -> Tensor:
        x_NC: Tensor = self.patch_embed(pixels_NP, grids)
        return x_NC

    def places(self, grids: Sequence[Grid]) -> Ints:
        """Row and column [N, 2] of every patch, row by row."""
        return np.concatenate([np.indices((grid.rows, grid.columns)).reshape(2, -1).T for grid in grids])


class Projector(nn.Layer):  # type: ignore[misc]
    """Norm, a square of patches side by side, linear, GELU, linear."""

    def __init__(self, arch: OcrArchitecture) -> None:
        super().__init__()
        width, self.merge = arch.vision.merged_size, arch.vision.merge
        self.pre_norm = Norm(arch.vision.hidden_size, EPSILON)
        self.linear_1 = linear(arch, width, width, True)
        self.linear_2 = linear(arch, width, arch.hidden_size, True)

    def forward(self, x_NC: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Patches row by row [N, C] -> [M, H] in the order of the images' placeholders."""
        order_N = paddle.to_tensor(squares(grids, self.merge))
        normed_MW = paddle.gather(self.pre_norm(x_NC), order_N).reshape([x_NC.shape[0] // self.merge**2, -1])
        return self.linear_2(ops.gelu(self.linear_1(normed_MW)))


def squares(grids: Sequence[Grid], merge: int) -> Ints:
    """Indices [N] of patches that come row by row, square after square of ``merge`` by ``merge``."""
    found, start = [], 0
    for grid in grids:
        places = start + np.arange(grid.size).reshape(grid.rows // merge, merge, grid.columns // merge, merge)
        found.append(places.transpose(0, 2, 1, 3).reshape(-1))
        start += grid.size
    return np.concatenate(found)
