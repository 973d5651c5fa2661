"""The update itself: A, B, their scale, and DoRA's magnitudes. Knows one matrix W or a stack of them, no model.

    ΔW = s (A B − A₀ B₀)       A [.., I, r]   B [.., r, O]

in Paddle's order of axes, so that y = x W + x ΔW. A₀ B₀ is there for PiSSA only: the start, held fixed, so that ΔW
begins as zero and the base stays as it is. Letters: I inputs, O outputs, r rank, E experts; ``..`` is E or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api.adapter import RankGroup, Update
from erniecore_lora.sizes import Size


class WeightChange(nn.Layer):  # type: ignore[misc]
    """What an adapter of linear layers trains for one of them, or for a stack: how it changes the matrix W [.., I, O]."""

    def merged(self, weight: Tensor) -> Tensor:
        """The matrix that computes the same alone, in W's dtype."""
        raise NotImplementedError

    def share(self, axis: int, group: RankGroup) -> None:
        """The ranks of ``group`` have equal parts of W along ``axis``; parameters are cut by whoever cuts W."""

    def product(self) -> Update | None:
        """The update as a product of two factors beside x W; None where it is none."""
        return None


class LowRankProduct(WeightChange):
    """An update ΔW = s F S of two factors, whatever is trained of them.

    Attributes:
        scale: s. dropout: rate on the input of the first factor.
        magnitude: [.., O], DoRA's length of every output's weights; None without DoRA.
    """

    scale: float
    dropout: float
    magnitude: Tensor | None

    def factors(self) -> tuple[Tensor, Tensor]:
        """F [.., I, r] and S [.., r, O]."""
        raise NotImplementedError

    def apply_to(self, x: Tensor, matmul: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """(s x F) S, by the caller's product of rows and a matrix (or a stack). The scale is applied where numbers are few."""
        first, second = self.factors()
        return matmul(matmul(self.dropped(x), first) * self.scale, second)

    def dropped(self, x: Tensor) -> Tensor:
        """``x``, in training with dropout."""
        return nn.functional.dropout(x, self.dropout) if self.dropout and self.training else x

    def delta(self) -> Tensor:
        """ΔW [.., I, O] in float32."""
        first, second = self.factors()
        return paddle.matmul(first.astype("float32"), second.astype("float32")) * self.scale

    def merged(self, weight: Tensor) -> Tensor:
        """W + ΔW, the sum computed in float32."""
        return (weight.astype("float32") + self.delta()).astype(weight.dtype)

    def product(self) -> Update | None:
        """None with DoRA, whose lengths are no product."""
        return None if self.magnitude is not None else Update(*self.factors(), self.scale)


class LowRank(LowRankProduct):
    """A trained update of one parameter.

    Attributes:
        A, B: the trained factors, in the parameter's dtype.
        magnitude: [.., O], DoRA's length of every output's weights; None without DoRA.
        size, scale: r and alpha; s.
        dropout: rate on the input of A.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str, size: Size) -> None:
        super().__init__()
        *stack, num_in, num_out = shape
        zeros = nn.initializer.Constant(0.0)
        self.A = self.create_parameter([*stack, num_in, size.rank], dtype=dtype, default_initializer=zeros)
        self.B = self.create_parameter([*stack, size.rank, num_out], dtype=dtype, default_initializer=zeros)
        self.size, self.scale, self.dropout = size, size.scale, 0.0
        self.magnitude: Tensor | None = None
        self.fixed = False
        #: the parts of A₀ and B₀ that go with a cut W; in a dict, or they would become parameters
        self._parts: dict[str, Tensor] = {}
        self._sum: Callable[[Tensor], Tensor] | None = None

    def share(self, axis: int, group: RankGroup) -> None:
        """See :meth:`WeightChange.share`. Of inputs: lengths of outputs are sums over the ranks. Of outputs or experts: a rank
        has all that its outputs depend on. A₀ and B₀ stay whole for writing, where A and B are too, beside their parts."""
        stacked = self.A.ndim == 3
        along_inputs = axis == 0 and not stacked
        if self.fixed:
            for name, own in (
                ("A_start", axis if stacked or along_inputs else None),
                ("B_start", None if along_inputs else axis),
            ):
                if own is not None:
                    self._parts[name] = _part(getattr(self, name), own, group)
        if self.magnitude is None:
            return
        if along_inputs:
            self._sum = group.all_reduce
        else:
            self.register_buffer("squares", _part(self.squares, 0, group), persistable=False)

    def _start(self, name: str, like: Tensor) -> Tensor:
        """A₀ or B₀, as much of it as ``like`` has of A or B."""
        whole: Tensor = getattr(self, name)
        return whole if whole.shape == like.shape else self._parts[name]

    def factors(self) -> tuple[Tensor, Tensor]:
        """A and B; with a fixed start (A | A₀) and (B over −B₀), so that one product is the whole update."""
        if not self.fixed:
            return self.A, self.B
        a, b = self._start("A_start", self.A), self._start("B_start", self.B)
        return paddle.concat([self.A, a], axis=-1), paddle.concat([self.B, -b], axis=-2)

    def gain(self, weight: Tensor) -> Tensor:
        """m / |W + ΔW| per output, [.., O]; the length is a constant to the gradient (DoRA, section 4.3).

        |W + ΔW|² = |W|² + s B (2 AᵀW + s AᵀA B), summed over r: no matrix of W's size is made.
        """
        assert self.magnitude is not None
        with paddle.no_grad():
            a, b = (_float32(factor) for factor in self.factors())
            inner = paddle.matmul(a, _float32(weight), transpose_x=True) * 2
            inner = inner + paddle.matmul(paddle.matmul(a, a, transpose_x=True), b) * self.scale
            change = (b * inner).sum(axis=-2) * self.scale
            length = paddle.sqrt(self.squares + (change if self._sum is None else self._sum(change)))
        return (_float32(self.magnitude) / length).astype(weight.dtype)

    def merged(self, weight: Tensor) -> Tensor:
        """The matrix that computes the same alone: W + ΔW, or m (W + ΔW) / |W + ΔW|; in W's dtype."""
        total = weight.astype("float32") + self.delta()
        if self.magnitude is not None:
            length = paddle.sqrt((total * total).sum(axis=-2, keepdim=True))
            total = total * (self.magnitude.astype("float32").unsqueeze(-2) / length)
        return total.astype(weight.dtype)

    def add_magnitude(self, weight: Tensor, value: Tensor | None = None) -> None:
        """Turn into DoRA: m is ``value`` or starts as |W + ΔW|, the lengths over inputs; |W|² is kept, as W is frozen."""
        w = weight.astype("float32")
        self.register_buffer("squares", (w * w).sum(axis=-2), persistable=False)
        if value is None:
            total = w + self.delta()
            value = paddle.sqrt((total * total).sum(axis=-2))
        self.magnitude = self.create_parameter(value.shape, dtype=self.A.dtype)
        self.magnitude.set_value(value.astype(self.A.dtype))

    def fix_start(self) -> None:
        """Subtract the present A B for good."""
        self.register_buffer("A_start", self.A.detach().clone(), persistable=False)
        self.register_buffer("B_start", self.B.detach().clone(), persistable=False)
        self.fixed = True


def _part(whole: Tensor, axis: int, group: RankGroup) -> Tensor:
    """This rank's part along ``axis``."""
    size = whole.shape[axis] // group.size
    return whole.slice([axis], [group.index * size], [(group.index + 1) * size]).clone()


def _float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == paddle.float32 else tensor.astype("float32")


def kaiming(low: LowRank, weight: Tensor | None) -> None:
    """A uniform in ±1/sqrt(I) (Kaiming with a = sqrt 5), B zero."""
    bound = 1 / math.sqrt(low.A.shape[-2])
    low.A.set_value(paddle.uniform(low.A.shape, min=-bound, max=bound).astype(low.A.dtype))


def gaussian(low: LowRank, weight: Tensor | None) -> None:
    """A normal with deviation 1/r, B zero."""
    low.A.set_value((paddle.randn(low.A.shape) / low.size.rank).astype(low.A.dtype))


def pissa(low: LowRank, weight: Tensor) -> None:
    """s A B = the r largest singular values of W with their vectors, shared evenly; the same start is held fixed.

    Source: arXiv:2404.02948, equations 2 to 4, with the residual W − s A₀ B₀ written as W and a second, fixed product.
    """
    u, s, vt = paddle.linalg.svd(weight.astype("float32"), full_matrices=False)
    root = paddle.sqrt(s[..., : low.size.rank] / low.scale)
    low.A.set_value((u[..., : low.size.rank] * root.unsqueeze(-2)).astype(low.A.dtype))
    low.B.set_value((root.unsqueeze(-1) * vt[..., : low.size.rank, :]).astype(low.A.dtype))
    low.fix_start()


#: those that read the weight; the others get None
READING = frozenset({"pissa"})
#: ``adapter.init`` -> how A and B are filled
STARTS: dict[str, Callable[[LowRank, Any], None]] = {"kaiming": kaiming, "gaussian": gaussian, "pissa": pissa}
