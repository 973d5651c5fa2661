"""Heads of language models, in int8 with a scale per word or in bfloat16. A head that shares its weight with the embedding takes
the embedding's place. Models compute with what their ``head`` returns, so these layers have a ``weight`` [V, H]: int8 values that
are bound in ``ops.quantized_heads``, or bfloat16 numbers.

    int8   quant_weight int8 [V, H], weight_scale float32 [V]
    bf16   quant_weight bfloat16 [V, H]

Letters: H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ConfigError, ops
from erniecore.api.decoding import CompactEmbedding, Projection
from erniecore.api.layers import add_buffers, fill, filled, is_empty, stored_dtype
from erniecore.api.quantizer import StoredWeight
from erniecore_weight_only.codec import bfloat16_values, encode_rows
from erniecore_weight_only.layers import PackedMatrix, PackedWeight
from erniecore_weight_only.schemes import Scheme


class PackedHead(PackedMatrix, PackedWeight):
    """A head in int8: [.., H] -> [.., V]. It has no ``shard_weight``: ranks cannot share it.

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

    def buffer_shapes(self, rows: int, inputs: int) -> dict[str, tuple[Sequence[int], str]]:
        """Buffer -> its shape and dtype."""
        return {"quant_weight": ([rows, inputs], "int8"), "weight_scale": ([rows], "float32")}

    def store(self, weight: Tensor, where: str) -> None:
        """Pack ``weight`` when the buffers are filled. Raises ``NumericsError`` for values that are not finite."""
        rows, inputs = weight.shape if self.rows_first else reversed(weight.shape)
        add_buffers(self, self.buffer_shapes(rows, inputs), lambda: self.pack(weight, where))
        if not is_empty(weight):
            fill(self)

    def pack(self, weight: Tensor, where: str) -> Mapping[str, Tensor]:
        """The values of the buffers."""
        packed, self.rounding_error = encode_rows(weight, self.scheme, where, rows_first=self.rows_first)
        return {"quant_weight": packed.qweight, "weight_scale": packed.scales}

    def forward(self, x: Tensor) -> Tensor:
        """[.., H] -> [.., V]."""
        return ops.head_logits(x, self.weight, transposed=True, bias=self.bias)

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of words, float32 or the dtype of the values: integers [..] -> [.., H]."""
        return ops.quantized_rows(ids, self.matrix)

    def projection(self, parameter: str) -> Projection | None:
        """The head as kernels take it, with its bias."""
        return self.described(self.bias)


class KeptHead(PackedHead):
    """A head in bfloat16."""

    @property
    def weight(self) -> Tensor:
        """[V, H], as a model's ``head`` returns it."""
        values: Tensor = self.quant_weight
        return values

    def buffer_shapes(self, rows: int, inputs: int) -> dict[str, tuple[Sequence[int], str]]:
        """Buffer -> its shape and dtype: there are no scales."""
        return {"quant_weight": ([rows, inputs], "bfloat16")}

    def pack(self, weight: Tensor, where: str) -> Mapping[str, Tensor]:
        """The value of the buffer, and what rounding changed if the file has another dtype."""
        wide = None if stored_dtype(weight) == "bfloat16" else filled(weight).detach()
        values, swapped = bfloat16_values(weight if wide is None else wide, where)
        if wide is not None:
            self.rounding_error = ops.RoundingError.between_tensors(wide, values)
        return {"quant_weight": values if swapped != self.rows_first else values.t().contiguous()}

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of words in bfloat16: integers [..] -> [.., H]."""
        return ops.embedding(ids, self.quant_weight)

    def dequantize(self) -> Tensor:
        """[V, H]; new, without gradient."""
        with paddle.no_grad():
            return self.quant_weight.astype(self.compute_dtype)

    def described(self, bias: Tensor | None = None) -> Projection:
        """The weight as kernels take it."""
        return Projection(self.quant_weight, self.shape[-1], bias, transposed=True)

    def stored_weight(self) -> StoredWeight:
        """What is stored, for exporters: there are no scales."""
        return StoredWeight("bf16", self.quant_weight, paddle.zeros([0]))

    def apply_weight(self, x: Tensor, routes: Any = None) -> Tensor:
        """[.., H] -> [.., V]."""
        return ops.frozen_linear(x, self.quant_weight, transposed=True)

    def measured_error(self, parameter: str) -> ops.RoundingError | None:
        """Part of the protocol ``ops.MeasuredRounding``; of values as the file has them there is none."""
        if self.rounding_error is None:
            fill(self)
            return ops.RoundingError.between_tensors(self.quant_weight, self.quant_weight)
        return self.rounding_error


class LookUp:
    """Looks words up instead of computing logits. Comes before the head's class."""

    def forward(self: Any, ids: Tensor) -> Tensor:
        """ids int64 [..] -> [.., H]."""
        rows: Tensor = self.rows(ids).astype(self.compute_dtype)
        return rows


class PackedEmbedding(LookUp, PackedHead):
    """An embedding in int8 whose weight is the head."""


class KeptEmbedding(LookUp, KeptHead):
    """An embedding in bfloat16 whose weight is the head."""


#: quant dtype -> the class of a head of its own, and that of an embedding which is the head
KINDS: Mapping[str, tuple[type[PackedHead], type[PackedHead]]] = {
    "int8": (PackedHead, PackedEmbedding),
    "bf16": (KeptHead, KeptEmbedding),
}


def pack_head(model: Any, layer: nn.Layer, scheme: Scheme, name: str) -> PackedHead:
    """The head of ``model`` packed: ``layer``, a linear layer or an embedding.

    Raises:
        ConfigError: the model computes its head otherwise.
    """
    causal: Any = model
    if not isinstance(model, CompactEmbedding) or causal.head()[0] is not layer.weight:
        message = f"{type(model).__name__} does not compute with a head that is packed ({name}); set it to none"
        raise ConfigError.at("quantizer.head", message)
    own, shared = KINDS[scheme.quant_dtype]
    kind = own if isinstance(layer, nn.Linear) else shared
    return kind(layer, scheme, name)
