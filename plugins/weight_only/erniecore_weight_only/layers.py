"""Layers whose weights are packed. They take the place of ``nn.Linear`` and of stacked experts under their names; the
weight itself is ``<name>.quant_weight`` and ``<name>.weight_scale``, both fixed. They are ``erniecore.api.PackedLayer``.

Letters: T tokens, N assignments sorted by expert, k experts per token, H hidden, I inputs, O outputs, E experts.
"""

from __future__ import annotations

from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import Projection, StoredWeight, UsageError, ops
from erniecore_weight_only.codec import Packed, encode, matrix
from erniecore_weight_only.matmul import multiply, multiply_grouped
from erniecore_weight_only.schemes import STACKED, Scheme


class PackedWeight(nn.Layer):  # type: ignore[misc]
    """Codes and scales of one weight.

    Attributes:
        shape: of the weight, [I, O] or [E, I, O]. scheme: the stored form. compute_dtype: of the numbers.
        quant_weight, weight_scale: see ``codec``.
    """

    def __init__(self, weight: Tensor, scheme: Scheme, where: str) -> None:
        """Raises ``NumericsError`` for values that are not finite; ``where`` names the weight."""
        super().__init__()
        self.shape, self.scheme, self.compute_dtype = tuple(weight.shape), scheme, weight.dtype
        self.store(weight, where)

    def store(self, weight: Tensor, where: str) -> None:
        """Make the buffers; other forms have others."""
        packed = encode(weight, self.scheme, where)
        self.register_buffer("quant_weight", packed.codes)
        self.register_buffer("weight_scale", packed.scales)

    @property
    def matrix(self) -> ops.PackedMatrix:
        """What operators take."""
        packed = Packed(self.quant_weight, self.weight_scale)
        return matrix(packed, self.scheme, self.shape[-1])

    def numbers(self) -> Tensor:
        """W' transposed, [.., O, I]; new, without gradient."""
        with paddle.no_grad():
            return ops.packed_numbers(self.matrix).astype(self.compute_dtype)

    def whole(self) -> Tensor:
        """W' [.., I, O]."""
        last = len(self.shape) - 1
        return self.numbers().transpose([*range(last - 1), last, last - 1])

    def stored_weight(self) -> StoredWeight:
        """What is stored, for exporters."""
        factors = getattr(self, "input_scale", None)
        return StoredWeight(self.scheme.form, self.quant_weight, self.weight_scale, self.scheme.group, factors)


class PackedLinear(PackedWeight):
    """y = x W' + b."""

    def __init__(self, base: nn.Linear, scheme: Scheme, where: str) -> None:
        super().__init__(base.weight, scheme, where)
        self.bias = base.bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        y = multiply(x, self)
        return y if self.bias is None else y + self.bias

    def packed_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``PackedLayer``."""
        return {"weight": self.shape}

    def unpacked(self, parameter: str) -> Tensor:
        """See ``PackedLayer``."""
        return self.whole()

    def stored(self, parameter: str) -> StoredWeight:
        """See ``StoredWeight``."""
        return self.stored_weight()

    def projection(self, parameter: str) -> Projection | None:
        """See ``Projection``; None for layers that derive from this one and compute otherwise."""
        return Projection(self.stored_weight(), self.shape[-1], self.bias) if type(self) is PackedLinear else None

    def multiply(self, parameter: str, x: Tensor, routes: Any = None) -> Tensor:
        """See ``PackedLayer``."""
        return multiply(x, self)


class PackedExperts(nn.Layer):  # type: ignore[misc]
    """Routed experts of which some or all of gate_proj, up_proj and down_proj are packed."""

    def __init__(self, base: nn.Layer, schemes: dict[str, Scheme], where: str) -> None:
        super().__init__()
        self.compute_dtype = base.gate_proj.dtype
        extra = [name for name, _ in base.named_parameters() if name not in STACKED]
        if extra:
            raise UsageError("stacked experts with further parameters cannot be packed", where=where, found=extra[0])
        for name in STACKED:
            weight = getattr(base, name)
            if name in schemes:
                self.add_sublayer(name, self.packed(weight, schemes[name], f"{where}.{name}"))
            else:
                self.add_parameter(name, weight)

    def packed(self, weight: Tensor, scheme: Scheme, where: str) -> PackedWeight:
        """One of the matrices."""
        return PackedWeight(weight, scheme, where)

    def forward(self, x_TH: Tensor, experts_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        """Weighted sum [T, H] of the selected experts' outputs."""
        x_NH, routes = ops.dispatch(x_TH, experts_Tk, self.shape_of("gate_proj")[0])
        gate_NI, up_NI = (self.multiply(name, x_NH, routes) for name in ("gate_proj", "up_proj"))
        return ops.combine(self.multiply("down_proj", ops.swiglu(gate_NI, up_NI), routes), weights_Tk, routes)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """[E, I, O], packed or not."""
        return tuple(getattr(self, name).shape)

    def packed_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``PackedLayer``."""
        return {name: layer.shape for name, layer in self.named_children()}

    def unpacked(self, parameter: str) -> Tensor:
        """See ``PackedLayer``."""
        weight: PackedWeight = getattr(self, parameter)
        return weight.whole()

    def stored(self, parameter: str) -> StoredWeight:
        """See ``StoredWeight``."""
        weight: PackedWeight = getattr(self, parameter)
        return weight.stored_weight()

    def projection(self, parameter: str) -> Projection | None:
        """See ``Projection``; None for layers that derive from this one and compute otherwise."""
        weight: Any = getattr(self, parameter)
        if type(self) is not PackedExperts or not isinstance(weight, Tensor | PackedWeight):
            return None
        return Projection(weight if isinstance(weight, Tensor) else weight.stored_weight(), weight.shape[-1])

    def multiply(self, parameter: str, x: Tensor, routes: Any = None) -> Tensor:
        """See ``PackedLayer``; also for a matrix that is not packed."""
        weight = getattr(self, parameter)
        if isinstance(weight, PackedWeight):
            return multiply_grouped(x, weight, routes)
        return ops.grouped_linear(x, weight, routes)
