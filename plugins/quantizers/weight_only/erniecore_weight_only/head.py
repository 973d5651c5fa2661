"""Heads of language models, in int8 with a scale per word or in bfloat16. A head that shares its weight with the embedding takes
the embedding's place. Models compute with what their ``head`` returns, so these layers have a ``weight`` [V, H]: int8 values that
are bound in ``ops.quantized_heads``, or bfloat16 numbers.

    int8   quant_weight int8 [V, H], weight_scale float32 [V]
    bf16   quant_weight bfloat16 [V, H]

Letters: H hidden, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ConfigError, NumericsError, ops
from erniecore.api.decoding import CompactEmbedding, Projection
from erniecore.api.layers import add_buffers, fill, filled, is_empty, stored_values
from erniecore.api.quantizer import StoredWeight
from erniecore_weight_only.codec import encode_rows
from erniecore_weight_only.layers import PackedWeight
from erniecore_weight_only.schemes import Scheme


class PackedHead(PackedWeight):
    """A head: [.., H] -> [.., V]. It has no ``shard_weight``: ranks cannot share it.

    Attributes:
        bias: [V] or None.
    """

    bias: Tensor | None = None

    def __init__(self, base: Any, scheme: Scheme, where: str) -> None:
        self.rows_first = not isinstance(base, nn.Linear)
        super().__init__(base.weight, scheme, where)
        if not self.rows_first:
            self.bias = base.bias

    @property
    def weight(self) -> Tensor:
        """[V, H], as a model's ``head`` returns it."""
        values: Tensor = self.quant_weight
        if self.scheme.quant_dtype == "int8":
            ops.quantized_heads.bind(values, self.weight_scale)
        return values

    @property
    def shape(self) -> tuple[int, ...]:
        """Inputs and outputs, [H, V]."""
        rows, inputs = self.quant_weight.shape
        return inputs, rows

    @property
    def original_shape(self) -> tuple[int, ...]:
        """[V, H] of an embedding, [H, V] of a linear layer."""
        return tuple(self.quant_weight.shape) if self.rows_first else self.shape

    def store(self, weight: Tensor, where: str) -> None:
        """Pack ``weight`` when the buffers are filled. Raises ``NumericsError`` for values that are not finite."""
        rows, inputs = weight.shape if self.rows_first else reversed(weight.shape)
        whole = self.scheme.quant_dtype == "int8"
        shapes = {"quant_weight": ([rows, inputs], "int8" if whole else "bfloat16")}

        def make() -> Mapping[str, Tensor]:
            if not whole:
                values, self.rounding_error = _halves(weight, self.rows_first, where)
                return {"quant_weight": values}
            packed, self.rounding_error = encode_rows(weight, self.scheme, where, rows_first=self.rows_first)
            return {"quant_weight": packed.qweight, "weight_scale": packed.scales}

        add_buffers(self, shapes | ({"weight_scale": ([rows], "float32")} if whole else {}), make)
        if not is_empty(weight):
            fill(self)

    def forward(self, x: Tensor) -> Tensor:
        """[.., H] -> [.., V]."""
        return ops.head_logits(x, self.weight, transposed=True, bias=self.bias)

    def dequantize(self) -> Tensor:
        """[V, H]; new, without gradient."""
        with paddle.no_grad():
            if self.scheme.quant_dtype == "int8":
                return super().dequantize()
            return self.quant_weight.astype(self.compute_dtype)

    def described(self, bias: Tensor | None = None) -> Projection:
        """The weight as kernels take it."""
        if self.scheme.quant_dtype == "int8":
            return super().described(bias)
        return Projection(self.quant_weight, self.shape[-1], bias, transposed=True)

    def projection(self, parameter: str) -> Projection | None:
        """The head as kernels take it, with its bias."""
        return self.described(self.bias)

    def packed_shapes(self) -> dict[str, tuple[int, ...]]:
        """Part of the protocol ``PackedLayer``."""
        return {"weight": self.shape}

    def dequantized(self, parameter: str) -> Tensor:
        """Part of the protocol ``PackedLayer``."""
        fill(self)
        return self.dequantize_weight()

    def measured_error(self, parameter: str) -> ops.RoundingError | None:
        """Part of the protocol ``ops.MeasuredRounding``."""
        if self.rounding_error is None and self.scheme.quant_dtype == "bf16":  # the file's own numbers
            fill(self)
            return ops.RoundingError.between_tensors(self.quant_weight, self.quant_weight)
        return self.rounding_error

    def stored(self, parameter: str) -> StoredWeight:
        """Part of the protocol ``StoredWeight``."""
        if self.scheme.quant_dtype == "int8":
            return self.stored_weight()
        return StoredWeight("bf16", self.quant_weight, paddle.zeros([0]))

    def matmul(self, parameter: str, x: Tensor, routes: Any = None) -> Tensor:
        """Part of the protocol ``PackedLayer``."""
        return ops.head_logits(x, self.weight, transposed=True).astype(x.dtype)


class PackedEmbedding(PackedHead):
    """An embedding whose weight is the head."""

    def forward(self, ids: Tensor) -> Tensor:
        """ids int64 [..] -> [.., H]."""
        matrix = ops.head_matrix(self.weight)
        rows = ops.embedding(ids, self.quant_weight) if matrix is None else ops.quantized_rows(ids, matrix)
        return rows.astype(self.compute_dtype)


def pack_head(model: Any, layer: nn.Layer, scheme: Scheme, name: str) -> PackedHead:
    """The head of ``model`` packed: ``layer``, a linear layer or an embedding.

    Raises:
        ConfigError: the model computes its head otherwise.
    """
    causal: Any = model
    if not isinstance(model, CompactEmbedding) or causal.head()[0] is not layer.weight:
        message = f"{type(model).__name__} does not compute with a head that is packed ({name}); set it to none"
        raise ConfigError.at("quantizer.head", message)
    kind = PackedHead if isinstance(layer, nn.Linear) else PackedEmbedding
    return kind(layer, scheme, name)


def _halves(weight: Tensor, rows_first: bool, where: str) -> tuple[Tensor, ops.RoundingError | None]:
    """[V, H] in bfloat16, frozen: a view of the mapped file where that has it so, else rounded to nearest, and then what that
    changed."""
    found, error = stored_values(weight, "bfloat16"), None
    if found is None:
        wide = filled(weight).detach()
        found = wide.astype("bfloat16"), False
        error = ops.RoundingError.between_tensors(wide, found[0])
        if not math.isfinite(error.signal + error.noise):
            raise NumericsError("this weight holds values that are not finite in bfloat16", where=where)
    values, swapped = found
    return (values if swapped != rows_first else values.t().contiguous()), error
