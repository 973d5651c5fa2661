"""From patches of the vision tower to tokens of the language model: a square of patches becomes one vector, then two
frames become one.

Letters: N patches, M tokens, C width of the tower, W width of a square of patches, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import paddle  # noqa: TID253
from erniecore_ernie45.layers import RMSNorm, linear
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ops
from erniecore_ernie45_vl.architecture import VlArchitecture
from erniecore_ernie45_vl.positions import Grid, frame_pairs
from erniecore_ernie45_vl.vision import Norm

EPSILON = 1e-6


class Resampler(nn.Layer):  # type: ignore[misc]
    """Two steps of linear, GELU, linear, norm, and a projection with the text part's norm."""

    def __init__(self, arch: VlArchitecture) -> None:
        super().__init__()
        width = arch.vision.merged_size
        self.merge = arch.vision.merge
        self.spatial_linear = _step(arch, width, width)
        self.temporal_linear = _step(arch, 2 * width, width)
        self.mlp = linear(arch, width, arch.hidden_size, True)
        self.after_norm = RMSNorm(arch.hidden_size, arch.rms_norm_eps)

    def forward(self, x_NC: Tensor, grids: Sequence[Grid]) -> Tensor:
        """[N, C] in the tower's order -> [M, H] in the order of the images' placeholders."""
        squares_QW = self.spatial_linear(x_NC.reshape([x_NC.shape[0] // self.merge**2, -1]))
        even_M, odd_M = (paddle.to_tensor(indices) for indices in frame_pairs(grids, self.merge))
        pairs = [paddle.gather(squares_QW, even_M), paddle.gather(squares_QW, odd_M)]
        x_MW = self.temporal_linear(paddle.concat(pairs, axis=-1))
        return self.after_norm(self.mlp(x_MW))


class Gelu(nn.Layer):  # type: ignore[misc]
    """The activation as a layer, which has a number of its own in :func:`_step`."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> the same shape."""
        return ops.gelu(x)


def _step(arch: VlArchitecture, num_in: int, num_out: int) -> nn.Sequential:
    """Its parts are numbered 0, 2 and 3 in checkpoints."""
    first, second = linear(arch, num_in, num_out, True), linear(arch, num_out, num_out, True)
    return nn.Sequential(first, Gelu(), second, Norm(num_out, EPSILON))
