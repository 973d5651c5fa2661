"""Layers whose weights are packed. They take the place of ``nn.Linear`` and of stacked experts under their names; the
weight itself is ``<name>.quant_weight`` and ``<name>.weight_scale``, both fixed. They are ``erniecore.api.PackedLayer``.

Letters: T tokens, N assignments sorted by expert, k experts per token, H hidden, I inputs, O outputs, E experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import UsageError, ops
from erniecore.api.decoding import Projection
from erniecore.api.layers import add_buffers, fill, filled, is_empty
from erniecore.api.quantizer import StoredWeight
from erniecore_weight_only.codec import Packed, encode, encode_stored, matrix
from erniecore_weight_only.matmul import grouped_matmul
from erniecore_weight_only.schemes import STACKED, Scheme


class PackedWeight(nn.Layer):  # type: ignore[misc]
    """Quantized values and scales of one weight.

    Attributes:
        scheme: the quantization scheme. compute_dtype: of the dequantized weight. quant_weight, weight_scale: see ``codec``.
        rounding_error: what quantization changed, where it was measured.
    """

    rounding_error: ops.RoundingError | None = None

    def __init__(self, weight: Tensor, scheme: Scheme, where: str) -> None:
        """Raises ``NumericsError`` for values that are not finite; ``where`` names the weight."""
        super().__init__()
        self.scheme, self.compute_dtype = scheme, weight.dtype
        self.store(weight, where)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight, [I, O] or [E, I, O], as much as is here."""
        *stack, _, inputs = self.quant_weight.shape
        return (*stack, inputs, self.weight_scale.shape[len(stack)])

    @property
    def original_shape(self) -> tuple[int, ...]:
        """Of the parameter that was packed, as much as is here."""
        return self.shape

    def store(self, weight: Tensor, where: str) -> None:
        """Quantize ``weight`` into buffers, when they are filled; subclasses with other schemes register other buffers."""
        *stack, inputs, outputs = weight.shape
        groups = [self.scheme.num_groups(inputs)] if self.scheme.group else []
        shapes = {
            "quant_weight": ([*stack, self.scheme.code_rows(outputs), inputs], "int8"),
            "weight_scale": ([*stack, outputs, *groups], "float32"),
        }

        def make() -> dict[str, Tensor]:
            if stored := encode_stored(weight, self.scheme):
                packed, self.rounding_error = stored
            else:
                packed = encode(filled(weight), self.scheme, where)
            return {"quant_weight": packed.qweight, "weight_scale": packed.scales}

        add_buffers(self, shapes, make)
        if not is_empty(weight):
            fill(self)

    @property
    def matrix(self) -> ops.QuantizedMatrix:
        """The weight as operators take it."""
        packed = Packed(self.quant_weight, self.weight_scale)
        return matrix(packed, self.scheme, self.shape[-1])

    def dequantize(self) -> Tensor:
        """W' transposed, [.., O, I]; new, without gradient."""
        with paddle.no_grad():
            return ops.dequantize(self.matrix).astype(self.compute_dtype)

    def dequantize_weight(self) -> Tensor:
        """W' [.., I, O]."""
        last = len(self.shape) - 1
        return self.dequantize().transpose([*range(last - 1), last, last - 1])

    def stored_weight(self) -> StoredWeight:
        """What is stored, for exporters."""
        factors = self._buffers.get("input_scale")
        return StoredWeight(self.scheme.quant_dtype, self.quant_weight, self.weight_scale, self.scheme.group, factors)

    def described(self, bias: Tensor | None = None) -> Projection:
        """The weight as kernels take it."""
        return Projection(self.stored_weight(), self.shape[-1], bias)

    def apply_weight(self, x: Tensor, routes: Any = None) -> Tensor:
        """[.., I] -> [.., O]; of a stack rows [N, I] sorted by expert."""
        return ops.quantized_linear(x, self.matrix) if routes is None else grouped_matmul(x, self, routes)

    def shard_axes(self, axis: int, count: int) -> dict[str, int]:
        """See ``ShardableWeights.shard_weight``: shards of quantized values and scales are those of the shard."""
        whole, group = self.shape, self.scheme.group
        each, last = whole[axis] // count, len(whole) - 1
        if axis == last and self.scheme.bits == 4 and each % 2:
            raise ValueError(f"two outputs share a byte, and {each} of {whole[axis]} would be here")
        if axis == last - 1 and group and each % group:
            raise ValueError(f"{group} inputs share a scale, and {each} of {whole[axis]} would be here")
        qweight = {last: last - 1, last - 1: last}.get(axis, axis)
        if axis == last - 1 and not group:
            return {"quant_weight": qweight}
        return {"quant_weight": qweight, "weight_scale": qweight}


class PackedMatrix:
    """Base of packed layers with one weight, of any scheme. Comes before the scheme's ``PackedWeight``."""

    rounding_error: ops.RoundingError | None = None

    def packed_shapes(self: Any) -> dict[str, tuple[int, ...]]:
        """Part of the protocol ``PackedLayer``."""
        return {"weight": self.shape}

    def dequantized(self: Any, parameter: str) -> Tensor:
        """Part of the protocol ``PackedLayer``."""
        fill(self)
        return self.dequantize_weight()

    def measured_error(self: Any, parameter: str) -> ops.RoundingError | None:
        """Part of the protocol ``ops.MeasuredRounding``."""
        found: ops.RoundingError | None = self.rounding_error
        return found

    def stored(self: Any, parameter: str) -> StoredWeight:
        """Part of the protocol ``StoredWeight``."""
        found: StoredWeight = self.stored_weight()
        return found

    def matmul(self: Any, parameter: str, x: Tensor, routes: Any = None) -> Tensor:
        """Part of the protocol ``PackedLayer``."""
        return self.apply_weight(x)


class PackedLinearBase(PackedMatrix):
    """Base of packed linear layers of any scheme: y = x W' + b."""

    bias: Tensor | None

    def forward(self: Any, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        y: Tensor = self.matmul("weight", x)
        return y if self.bias is None else y + self.bias

    def shard_weight(self: Any, parameter: str, axis: int, group: Any) -> Mapping[str, int]:
        """Part of the protocol ``ShardableWeights``."""
        return self.shard_axes(axis, group.size) if parameter == "weight" else {}


class PackedLinear(PackedLinearBase, PackedWeight):
    """A linear layer with a packed weight."""

    def __init__(self, base: nn.Linear, scheme: Scheme, where: str) -> None:
        super().__init__(base.weight, scheme, where)
        self.bias = base.bias

    def projection(self, parameter: str) -> Projection | None:
        """See ``Projection``; None for layers that derive from this one and compute otherwise."""
        return self.described(self.bias) if type(self) is PackedLinear else None


class PackedExpertsBase(nn.Layer):  # type: ignore[misc]
    """Routed experts of which some or all of gate_proj, up_proj and down_proj are packed, with any scheme.

    Args:
        base: the experts. schemes: parameter -> its scheme, as :meth:`packed` takes it. where: their name.
    """

    def __init__(self, base: nn.Layer, schemes: Mapping[str, Any], where: str) -> None:
        super().__init__()
        self.compute_dtype = base.gate_proj.dtype
        for name in STACKED:
            if name in schemes:
                self.add_sublayer(name, self.packed(base, name, schemes[name], f"{where}.{name}"))
            else:
                self.add_parameter(name, getattr(base, name))

    def packed(self, base: Any, name: str, scheme: Any, where: str) -> nn.Layer:
        """Pack one of the matrices: a layer with ``shape``, ``apply_weight``, ``dequantize_weight``, ``stored_weight`` and
        ``shard_axes``."""
        raise NotImplementedError

    def forward(self, x_TH: Tensor, experts_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        """Weighted sum [T, H] of the selected experts' outputs."""
        x_NH, routes = ops.dispatch(x_TH, experts_Tk, self.shape_of("gate_proj")[0])
        gate_NI, up_NI = (self.matmul(name, x_NH, routes) for name in ("gate_proj", "up_proj"))
        return ops.combine(self.matmul("down_proj", ops.swiglu(gate_NI, up_NI), routes), weights_Tk, routes)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """[E, I, O], packed or not."""
        return tuple(getattr(self, name).shape)

    def expert_shapes(self) -> dict[str, tuple[int, ...]]:
        """Part of the protocol ``ExpertLayer``."""
        return {name: self.shape_of(name) for name in STACKED}

    def packed_shapes(self) -> dict[str, tuple[int, ...]]:
        """Part of the protocol ``PackedLayer``."""
        return {name: layer.shape for name, layer in self.named_children()}

    def dequantized(self, parameter: str) -> Tensor:
        """Part of the protocol ``PackedLayer``."""
        weight = getattr(self, parameter)
        fill(weight)
        dequantized: Tensor = weight.dequantize_weight()
        return dequantized

    def measured_error(self, parameter: str) -> ops.RoundingError | None:
        """Part of the protocol ``ops.MeasuredRounding``."""
        weight = getattr(self, parameter)
        return weight.rounding_error if isinstance(weight, PackedWeight) else None

    def stored(self, parameter: str) -> StoredWeight:
        """Part of the protocol ``StoredWeight``."""
        found: StoredWeight = getattr(self, parameter).stored_weight()
        return found

    def projection(self, parameter: str) -> Projection | None:
        """See ``Projection``; None for layers that derive from this one and compute otherwise."""
        weight: Any = getattr(self, parameter)
        if type(self) is not PackedExperts or not isinstance(weight, Tensor | PackedWeight):
            return None
        return Projection(weight, weight.shape[-1]) if isinstance(weight, Tensor) else weight.described()

    def matmul(self, parameter: str, x: Tensor, routes: Any = None) -> Tensor:
        """See ``PackedLayer``; also for a matrix that is not packed."""
        weight = getattr(self, parameter)
        return weight.apply_weight(x, routes) if isinstance(weight, nn.Layer) else ops.grouped_linear(x, weight, routes)

    def shard_weight(self, parameter: str, axis: int, group: Any) -> dict[str, int]:
        """Part of the protocol ``ShardableWeights``."""
        if parameter not in self.packed_shapes():
            return {}
        axes = getattr(self, parameter).shard_axes(axis, group.size)
        return {f"{parameter}.{name}": at for name, at in axes.items()}


class PackedExperts(PackedExpertsBase):
    """Stacked experts in int8, int4 or NF4."""

    def __init__(self, base: nn.Layer, schemes: Mapping[str, Scheme], where: str) -> None:
        extra = [name for name, _ in base.named_parameters() if name not in STACKED]
        if extra:
            raise UsageError("stacked experts with further parameters cannot be packed", where=where, found=extra[0])
        super().__init__(base, schemes, where)

    def packed(self, base: Any, name: str, scheme: Scheme, where: str) -> nn.Layer:
        """One matrix as a ``PackedWeight``."""
        return PackedWeight(getattr(base, name), scheme, where)
