"""What VeRA trains for one matrix W, and the layer that computes with it.

    ΔW = A[:I] diag(d) B[:, :O] diag(b)         A [I, r]   B [r, O]

in Paddle's order of axes, so that y = x W + x ΔW. A and B are those of the whole model, of which each layer takes what it needs.
Where W is divided among ranks, each takes the rows of A, or the columns of B, of its part of W, and is told which by
:meth:`Vectors.divide`. Letters: I inputs, O outputs, r rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import paddle  # noqa: TID253
from erniecore_lora.layers import LoraLinear
from erniecore_lora.lowrank import LowRankProduct
from paddle import Tensor, nn  # noqa: TID253

from erniecore_vera.projections import Projections


class Shared:
    """A [I, r] and Bᵀ [O, r] of the widest layers, as tensors; one object for all layers and copies, for it never changes."""

    def __init__(self, drawn: Projections, dtype: Any) -> None:
        self.drawn = drawn
        self.first = paddle.to_tensor(drawn.a).T.astype(dtype).contiguous()
        self.second = paddle.to_tensor(drawn.b).astype(dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared:
        return self


class Vectors(LowRankProduct):
    """The trained vectors ``d`` [r] and ``b`` [O] of one layer, in the dtype of its weights."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, shared: Shared, d_initial: float) -> None:
        super().__init__()
        self.inputs, self.outputs = shape[-2:]
        self.shared, self.d_initial = shared, d_initial
        start, zero = nn.initializer.Constant(d_initial), nn.initializer.Constant(0.0)
        self.d = self.create_parameter([shared.first.shape[1]], dtype=dtype, default_initializer=start)
        self.b = self.create_parameter([self.outputs], dtype=dtype, default_initializer=zero)
        self.scale, self.dropout, self.magnitude = 1.0, 0.0, None
        self.input_rows, self.output_rows = slice(self.inputs), slice(self.outputs)

    def divide(self, axis: int, index: int, size: int) -> None:
        """This rank has part ``index`` of ``size`` equal ones of W's inputs (axis 0) or outputs (axis 1), and of b with these."""
        width = (self.outputs if axis else self.inputs) // size
        rows = slice(index * width, (index + 1) * width)
        if axis:
            self.output_rows = rows
        else:
            self.input_rows = rows

    def matrices(self) -> tuple[Tensor, Tensor]:
        """A [I, r] and Bᵀ [O, r] of this layer, and of this rank."""
        return self.shared.first[self.input_rows], self.shared.second[self.output_rows]

    def apply_to(self, x: Tensor, matmul: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """b ∘ ((d ∘ (x A)) B)."""
        first, second = self.matrices()
        hidden = matmul(self.dropped(x), first) * self.d
        return paddle.matmul(hidden, second, transpose_y=True) * self.b

    def factors(self) -> tuple[Tensor, Tensor]:
        """A diag(d) and B diag(b)."""
        first, second = self.matrices()
        return first * self.d, (second * self.b.unsqueeze(-1)).T

    def delta(self) -> Tensor:
        """ΔW [I, O] in float32, with both products in float32."""
        first, second = (matrix.astype("float32") for matrix in self.matrices())
        scaled = second * self.b.astype("float32").unsqueeze(-1)
        return paddle.matmul(first * self.d.astype("float32"), scaled, transpose_y=True)


class VeraLinear(LoraLinear):
    """y = W x + b ∘ B (d ∘ A x)."""

    place: ClassVar[str] = "vera"

    def shard_weight(self, parameter: str, axis: int, group: Any) -> Mapping[str, int]:
        """See ``ShardableWeights``: A and B are no parameters, so each update is told what this rank has of them."""
        for adapter in self.adapters if parameter == "weight" else ():
            for _, vectors in self.updates(adapter):
                vectors.divide(axis, group.index, group.size)
        return super().shard_weight(parameter, axis, group)
