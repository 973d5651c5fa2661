"""What OFT trains for one matrix W, and the layer that computes with it.

    y = x R W      R = diag(R₁, …, R_k)      Rᵢ = (I − Qᵢ) (I + Qᵢ)⁻¹      Qᵢ = −Qᵢᵀ

in Paddle's order of axes: Qiu et al., "Controlling Text-to-Image Diffusion by Orthogonal Finetuning" (2023), arXiv:2306.07280,
sections 3.2 and 3.3, with the input rotated instead of the weight: Qiu et al., "Orthogonal Finetuning Made Scalable" (2025),
arXiv:2506.19847. Without the radius of COFT, with blocks of their own for each layer (``block_share`` false). The blocks are
computed in float32.

Instead of the inverse, n terms of its series: Rᵢ = I + 2 Q + 2 Q² + … + 2 Qⁿ⁻² + Qⁿ⁻¹. In PEFT Q has the other sign there,
(I + Q) (I − Q)⁻¹, and so it has here. Letters: I inputs, O outputs, k blocks, s rows of a block, T tokens.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import paddle  # noqa: TID253
from erniecore_lora.layers import Adapted
from erniecore_lora.lowrank import WeightChange
from paddle import Tensor, nn  # noqa: TID253

from erniecore_oft.shapes import Blocks


class Rotation(WeightChange):
    """The trained values ``skew`` [k, s (s − 1) / 2] of one layer, in the dtype of its weights; zero at first: R is I."""

    def __init__(self, blocks: Blocks, dtype: Any) -> None:
        super().__init__()
        self.blocks = blocks
        zeros = nn.initializer.Constant(0.0)
        self.skew = self.create_parameter(list(blocks.shape), dtype=dtype, default_initializer=zeros)

    def matrices(self) -> Tensor:
        """The blocks R, float32 [k, s, s]; of this rank, where the inputs are divided."""
        q, eye = skew_symmetric(_wide(self.skew), self.blocks.size), paddle.eye(self.blocks.size)
        eye = eye.astype(q.dtype)
        return series(q, eye, self.blocks.terms) if self.blocks.terms else paddle.linalg.solve(eye + q, eye - q)

    def rotated(self, x: Tensor) -> Tensor:
        """x R: [..., I] -> [..., I]."""
        size = self.blocks.size
        blocks_kTs = x.reshape([-1, x.shape[-1] // size, size]).transpose([1, 0, 2])
        turned = paddle.matmul(blocks_kTs, self.matrices().astype(x.dtype))
        return turned.transpose([1, 0, 2]).reshape(x.shape)

    def merged(self, weight: Tensor) -> Tensor:
        """R W, which computes the same of x as W of x R."""
        matrices = self.matrices()
        blocks_ksO = weight.astype(matrices.dtype).reshape([-1, self.blocks.size, weight.shape[-1]])
        return paddle.matmul(matrices, blocks_ksO).reshape(weight.shape).astype(weight.dtype)


def skew_symmetric(values: Tensor, size: int) -> Tensor:
    """[k, s (s − 1) / 2], the values above the diagonal row by row -> Q [k, s, s]."""
    rows, columns = np.triu_indices(size, 1)
    place, sign = np.zeros((size, size), np.int64), np.zeros((size, size), np.float32)
    place[rows, columns] = place[columns, rows] = np.arange(len(rows))
    sign[rows, columns], sign[columns, rows] = 1, -1
    spread = paddle.index_select(values, paddle.to_tensor(place.ravel()), axis=1).reshape([-1, size, size])
    return spread * paddle.to_tensor(sign).astype(values.dtype)


def series(q: Tensor, eye: Tensor, terms: int) -> Tensor:
    """I + 2 Q + 2 Q² + … + 2 Qⁿ⁻² + Qⁿ⁻¹ with n ``terms``."""
    found, power = eye + 2 * q, q
    for _ in range(terms - 3):
        power = paddle.matmul(power, q)
        found = found + 2 * power
    return found + paddle.matmul(power, q)


def _wide(values: Tensor) -> Tensor:
    return values if values.dtype in (paddle.float32, paddle.float64) else values.astype("float32")


class OftLinear(Adapted):
    """y = x R W, with the bias and the quantized weights of the base."""

    place: ClassVar[str] = "oft"

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        rotation = self.update("weight")
        return self.inner[0](x if rotation is None else rotation.rotated(x))
