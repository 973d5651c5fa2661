"""How images that are read enter, where a model has the two paths of ERNIE 5.0 (arXiv:2602.04705): convolutions and a vision
transformer over the quarters of its patches, which attention merges to one vector for each patch. Without them
(``image_read_layers`` 0) a patch enters through one matrix, as in an image that is drawn.

Letters: n images, G patches of a side, d values of a patch, q = 2 G quarters of a side, r values of a quarter, H hidden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import paddle  # noqa: TID253
import paddle.nn.functional as F  # noqa: TID253
from erniecore_ernie45.layers import RMSNorm, linear, normal
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ops
from erniecore_ernie5.image_tokens import CHANNELS, MERGED

if TYPE_CHECKING:
    from erniecore_ernie5.architecture import Ernie5Architecture


class ReadBlock(nn.Layer):  # type: ignore[misc]
    """Attention among all quarters of an image, and an MLP, each after a norm and added to the stream."""

    def __init__(self, arch: Ernie5Architecture) -> None:
        super().__init__()
        hidden, self.heads = arch.hidden_size, arch.num_attention_heads
        self.norm1, self.norm2 = RMSNorm(hidden, arch.rms_norm_eps), RMSNorm(hidden, arch.rms_norm_eps)
        self.qkv, self.proj = linear(arch, hidden, 3 * hidden, True), linear(arch, hidden, hidden, True)
        self.fc1, self.fc2 = linear(arch, hidden, 4 * hidden, True), linear(arch, 4 * hidden, hidden, True)

    def forward(self, x_nqH: Tensor) -> Tensor:
        """[n, q * q, H] -> [n, q * q, H]."""
        n, count, hidden = x_nqH.shape
        parts = self.qkv(self.norm1(x_nqH)).reshape([n, count, 3, self.heads, hidden // self.heads])
        seen = ops.full_attention(*parts.unbind(axis=2)).reshape([n, count, hidden])
        x_nqH = x_nqH + self.proj(seen)
        return x_nqH + self.fc2(F.gelu(self.fc1(self.norm2(x_nqH))))


class ReadingPaths(nn.Layer):  # type: ignore[misc]
    """Both paths and what merges them. The positions of quarters are learned."""

    def __init__(self, arch: Ernie5Architecture) -> None:
        super().__init__()
        image, hidden = arch.image, arch.hidden_size
        self.image, self.part = image, image.patch // MERGED
        width, values = hidden // 2, self.part * self.part
        self.embed = linear(arch, values * CHANNELS, hidden, True)
        shape = [(MERGED * image.grid) ** 2, hidden]
        self.places = self.create_parameter(shape, attr=normal(arch), dtype=paddle.get_default_dtype())
        self.blocks = nn.LayerList([ReadBlock(arch) for _ in range(arch.read_layers)])
        self.norm = RMSNorm(hidden, arch.rms_norm_eps)
        #: a convolution of 3 x 3 pixels, then one of a quarter, which does not overlap with the next
        self.near, self.far = linear(arch, 9 * CHANNELS, width, True), linear(arch, values * width, hidden, True)
        self.join, self.score = linear(arch, 2 * hidden, hidden, True), linear(arch, hidden, 1, False)

    def forward(self, values_nGGd: Tensor) -> Tensor:
        """Patches of whole images -> [n, G * G, H]."""
        n, size, patch, grid = values_nGGd.shape[0], self.image.size, self.image.patch, self.image.grid
        pixels = values_nGGd.reshape([n, grid, grid, patch, patch, CHANNELS]).transpose([0, 1, 3, 2, 4, 5])
        pixels = pixels.reshape([n, size, size, CHANNELS])
        x_nqH = self.embed(self._quarters(pixels)) + self.places
        for block in self.blocks:
            x_nqH = block(x_nqH)
        both = paddle.concat([self.norm(x_nqH), self._convolved(pixels)], axis=-1)
        return self._merged(self.join(both))

    def _convolved(self, pixels: Tensor) -> Tensor:
        """[n, size, size, 3] -> [n, q * q, H]; beyond the edges is 0."""
        size = self.image.size
        wide = F.pad(pixels, [0, 0, 1, 1, 1, 1, 0, 0], pad_from_left_axis=True)
        around = paddle.concat([wide[:, i : i + size, j : j + size] for i in range(3) for j in range(3)], axis=-1)
        found: Tensor = self.far(self._quarters(F.silu(self.near(around))))
        return found

    def _quarters(self, pixels: Tensor) -> Tensor:
        """[n, size, size, C] -> [n, q * q, part * part * C]."""
        side, part, channels = MERGED * self.image.grid, self.part, pixels.shape[-1]
        cut = pixels.reshape([-1, side, part, side, part, channels]).transpose([0, 1, 3, 2, 4, 5])
        return cut.reshape([-1, side * side, part * part * channels])

    def _merged(self, x_nqH: Tensor) -> Tensor:
        """The mean of a patch's quarters, weighted by a softmax of their scores: [n, q * q, H] -> [n, G * G, H]."""
        grid, hidden = self.image.grid, x_nqH.shape[-1]
        cut = x_nqH.reshape([-1, grid, MERGED, grid, MERGED, hidden]).transpose([0, 1, 3, 2, 4, 5])
        cut = cut.reshape([-1, grid * grid, MERGED * MERGED, hidden])
        return (F.softmax(self.score(cut), axis=2) * cut).sum(axis=2)
