"""The ways to compute with rounded numbers, as one interface: how a weight, an input and a gradient are rounded. No layers, no
state: the scale of inputs that training remembers comes from outside.

``weight`` and ``activation`` give numbers in a basis in which their product is that of the layer: with a Hadamard
transform H of block b, X W = (X H) (H W) / b. Letters: N rows, I inputs, O outputs; ``..`` is experts, or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

import paddle  # noqa: TID253
from erniecore_weight_only.codec import decode, encode
from erniecore_weight_only.schemes import Scheme
from paddle import Tensor  # noqa: TID253

from erniecore.api import ops
from erniecore_fp8_qat import rounding
from erniecore_fp8_qat.amax import ReduceAmax


class Packed(NamedTuple):
    """Codes of the transformed weight, and float32 scales. FP8: uint8 [.., I, O], scales [1] or [E] of a tensor, or of
    blocks. Integers: as ``weight_only`` stores them."""

    qweight: Tensor
    scales: Tensor


#: name -> shape and dtype
StoredShapes: TypeAlias = Mapping[str, tuple[Sequence[int], str]]


class Recipe(Protocol):
    """How one layer computes; equal settings make equal recipes."""

    #: whether inputs have a scale that training remembers
    static: bool
    #: what it is called in ``StoredWeight``
    quant_dtype: str

    @property
    def block(self) -> int:
        """Inputs that a Hadamard transform mixes; 1: none."""
        ...

    @property
    def fused(self) -> bool:
        """Whether weights that servers lay side by side share one scale."""
        ...

    def pack(
        self,
        weight: Tensor,
        partners: Sequence[Tensor] = (),
        reduce_amax: ReduceAmax | None = None,
        scales: Tensor | None = None,
    ) -> Packed:
        """[.., I, O] -> codes and scales.

        Args:
            partners: weights with which it has one scale, where scales are of tensors.
            joint: where ``weight`` is a part. scales: those of the whole, where they are known.
        """
        ...

    def stored_shapes(self, shape: Sequence[int]) -> StoredShapes:
        """``quant_weight`` and ``weight_scale`` of a weight of ``shape``: shape and dtype of :meth:`pack`'s."""
        ...

    def unpack(self, packed: Packed) -> Tensor:
        """What the codes stand for, float32 [.., I, O] in the transformed basis, ready for the product."""
        ...

    def transform(self, x: Tensor) -> Tensor:
        """[N, I] float32 into the transformed basis, and back up to the factor that ``unpack`` has taken out."""
        ...

    def scale_of(self, largest: Tensor) -> Tensor:
        """The scale of transformed inputs whose largest value is ``largest``, elementwise; static recipes only."""
        ...

    def activation(self, transformed: Tensor, scale: Tensor) -> Tensor:
        """Rounded inputs [N, I]; ``scale`` counts for static recipes only."""
        ...

    def check_shard(self, shape: Sequence[int], axis: int, each: int) -> None:
        """Whether ranks may share a weight [I, O], ``each`` of them along ``axis``. Raises ``ValueError`` with the reason."""
        ...

    def check_expert_sharding(self) -> None:
        """Whether ranks may have different experts. Raises ``ValueError`` with the reason."""
        ...

    def for_input(self, dy: Tensor) -> Tensor:
        """dY [N, O] as the gradient of the input is computed from it."""
        ...

    def for_weight(self, x: Tensor, dy: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """X [N, I] and dY [N, O] as the gradient of the weight, Xᵀ dY, is computed from them."""
        ...


@dataclass(frozen=True)
class TensorWise:
    """One scale per weight and per layer's input; a Hadamard transform of ``block`` inputs (1: none). ``fused``: weights that
    servers lay side by side have one scale."""

    block: int = 1
    input_gradient: str = "exact"
    weight_gradient: str = "exact"
    fused: bool = True

    @property
    def static(self) -> bool:
        return True

    @property
    def quant_dtype(self) -> str:
        return "e4m3"

    def pack(
        self,
        weight: Tensor,
        partners: Sequence[Tensor] = (),
        reduce_amax: ReduceAmax | None = None,
        scales: Tensor | None = None,
    ) -> Packed:
        transformed = transformed_weight(weight, self.block)
        if scales is None:
            largest = rounding.largest(transformed)
            for other in partners:
                largest = paddle.maximum(largest, rounding.largest(transformed_weight(other, self.block)))
            scales = (rounding.amax_scale(reduce_amax(largest) if reduce_amax else largest) / self.block).reshape([-1])
        spread = scales.reshape([] if transformed.ndim == 2 else [-1, 1, 1])
        return Packed(rounding.to_bits(ops.fp8_quantize(transformed, spread * self.block)), scales)

    def stored_shapes(self, shape: Sequence[int]) -> StoredShapes:
        return {"quant_weight": (shape, "uint8"), "weight_scale": (shape[:-2] or [1], "float32")}

    def unpack(self, packed: Packed) -> Tensor:
        shape = [1, 1] if packed.qweight.ndim == 2 else [-1, 1, 1]
        return rounding.from_bits(packed.qweight) * packed.scales.reshape(shape)

    def transform(self, x: Tensor) -> Tensor:
        return ops.hadamard(x, self.block)

    def scale_of(self, largest: Tensor) -> Tensor:
        return rounding.amax_scale(largest)

    def activation(self, transformed: Tensor, scale: Tensor) -> Tensor:
        return ops.fp8_quantize(transformed, scale) * scale

    def for_input(self, dy: Tensor) -> Tensor:
        return dy if self.input_gradient == "exact" else self._e5m2(dy)

    def for_weight(self, x: Tensor, dy: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        if self.weight_gradient == "exact":
            return x, dy
        rounded = self.transform(self.activation(self.transform(x), scale)) / self.block
        return rounded, self._e5m2(dy)

    def check_shard(self, shape: Sequence[int], axis: int, each: int) -> None:
        if axis == 0 and each % self.block:
            raise ValueError(f"a Hadamard transform mixes {self.block} inputs, and {each} of {shape[0]} would be here")
        if axis == 1:
            self.check_expert_sharding()

    def check_expert_sharding(self) -> None:
        if "e5m2" in (self.input_gradient, self.weight_gradient):
            raise ValueError("the scale of a gradient in E5M2 is that of the whole gradient; set those to exact")

    def _e5m2(self, dy: Tensor) -> Tensor:
        scale = rounding.amax_scale(dy.abs().max(), "e5m2")
        return ops.fp8_quantize(dy, scale, "e5m2") * scale


@dataclass(frozen=True)
class Integers:
    """Integer codes: a scale per output of a weight of ``bits`` (8, 4), inputs in eight bits with one scale per layer, or one
    per row (``rows``), made anew each time. A Hadamard transform of ``block`` inputs (1: none)."""

    bits: int = 8
    fused: ClassVar[bool] = False
    block: int = 1
    rows: bool = False

    @property
    def static(self) -> bool:
        return not self.rows

    @property
    def quant_dtype(self) -> str:
        return f"w{self.bits}a8"

    def pack(
        self,
        weight: Tensor,
        partners: Sequence[Tensor] = (),
        reduce_amax: ReduceAmax | None = None,
        scales: Tensor | None = None,
    ) -> Packed:
        qweight, scales = encode(transformed_weight(weight, self.block), self._scheme, "weight")
        return Packed(qweight, scales / self.block)

    def stored_shapes(self, shape: Sequence[int]) -> StoredShapes:
        *stack, inputs, outputs = shape
        rows = self._scheme.code_rows(outputs)
        return {"quant_weight": ([*stack, rows, inputs], "int8"), "weight_scale": ([*stack, outputs], "float32")}

    def unpack(self, packed: Packed) -> Tensor:
        last = packed.qweight.ndim - 1
        dequantized = decode(packed, self._scheme, packed.scales.shape[-1])  # type: ignore[arg-type]
        return dequantized.transpose([*range(last - 1), last, last - 1])

    def transform(self, x: Tensor) -> Tensor:
        return ops.hadamard(x, self.block)

    def scale_of(self, largest: Tensor) -> Tensor:
        return rounding.int8_scale(largest)

    def activation(self, transformed: Tensor, scale: Tensor) -> Tensor:
        if self.rows and transformed.size:
            scale = rounding.int8_scale(transformed.abs().max(axis=-1, keepdim=True))
        return rounding.rounded_int8(transformed, scale)

    def check_shard(self, shape: Sequence[int], axis: int, each: int) -> None:
        if axis == 0:
            raise ValueError(f"an output has one scale for all of its {shape[0]} inputs, and {each} would be here")
        if self.bits == 4 and each % 2:
            raise ValueError(f"two outputs share a byte, and {each} of {shape[1]} would be here")

    def check_expert_sharding(self) -> None:
        """Each expert has scales of its own."""

    def for_input(self, dy: Tensor) -> Tensor:
        return dy

    def for_weight(self, x: Tensor, dy: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        return x, dy

    @property
    def _scheme(self) -> Scheme:
        return Scheme(f"int{self.bits}")


@dataclass(frozen=True)
class BlockWise:
    """Scales for 1x128 of inputs and gradients and for 128x128 of weights, made anew each time."""

    block: ClassVar[int] = 1
    fused: ClassVar[bool] = False
    weight_gradient: str = "e4m3"

    @property
    def static(self) -> bool:
        return False

    @property
    def quant_dtype(self) -> str:
        return "e4m3 by blocks"

    def pack(
        self,
        weight: Tensor,
        partners: Sequence[Tensor] = (),
        reduce_amax: ReduceAmax | None = None,
        scales: Tensor | None = None,
    ) -> Packed:
        dequantized, scales = rounding.weight_blocks(weight.detach().astype("float32"))
        return Packed(rounding.to_bits(dequantized), scales)

    def stored_shapes(self, shape: Sequence[int]) -> StoredShapes:
        blocks = [-(-size // rounding.BLOCK) for size in shape[-2:]]
        return {"quant_weight": (shape, "uint8"), "weight_scale": ([*shape[:-2], *blocks], "float32")}

    def unpack(self, packed: Packed) -> Tensor:
        return rounding.from_bits(packed.qweight) * rounding.spread_blocks(packed.scales, packed.qweight.shape)

    def transform(self, x: Tensor) -> Tensor:
        return x

    def scale_of(self, largest: Tensor) -> Tensor:
        return paddle.ones_like(largest)

    def check_shard(self, shape: Sequence[int], axis: int, each: int) -> None:
        if each % rounding.BLOCK:
            raise ValueError(
                f"{rounding.BLOCK} share a scale along each axis, and {each} of {shape[axis]} would be here"
            )

    def check_expert_sharding(self) -> None:
        if self.weight_gradient != "exact":
            raise ValueError("blocks of 128 rows of a gradient would be others; set quantizer.weight_gradient to exact")

    def activation(self, transformed: Tensor, scale: Tensor) -> Tensor:
        return rounding.rounded_rows(transformed)

    def for_input(self, dy: Tensor) -> Tensor:
        return rounding.rounded_rows(dy)

    def for_weight(self, x: Tensor, dy: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Blocks of 128 rows of one column: the rows are what this product adds up."""
        if self.weight_gradient == "exact":
            return x, dy
        transformed_x, transformed_dy = (rounding.rounded_rows(t.transpose([1, 0])).transpose([1, 0]) for t in (x, dy))
        return transformed_x, transformed_dy


def transformed_weight(weight: Tensor, block: int) -> Tensor:
    """H W, float32: along the inputs, which are the last axis but one."""
    weight = weight.detach().astype("float32")
    if block == 1:
        return weight
    last = weight.ndim - 1
    order = [*range(last - 1), last, last - 1]
    return ops.hadamard(weight.transpose(order), block).transpose(order)
