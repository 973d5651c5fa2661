"""Heads of language models whose weight is frozen in bfloat16, or in int8 with a scale per word, beside rows in float32; and the
embedding that shares such a weight.

Letters: H hidden, V vocabulary.
"""

from __future__ import annotations

import paddle
from paddle import Tensor

from erniecore_ops.bfloat16_weights import frozen_linear
from erniecore_ops.packed_weights import QuantizedMatrix
from erniecore_ops.quantized_linear import quantized_linear
from erniecore_ops.shards import ShardTable

#: int8 values [V, H] that a model's ``head`` returns as its weight -> their scales [V]
quantized_heads: ShardTable[Tensor] = ShardTable()


def head_matrix(weight: Tensor) -> QuantizedMatrix | None:
    """The head whose ``weight`` [V, H] is bound in ``quantized_heads``; None: it is not quantized."""
    scales = quantized_heads.of(weight)
    return None if scales is None else QuantizedMatrix(weight, scales, "int8", 0, int(weight.shape[0]))


def head_logits(hidden: Tensor, weight: Tensor, *, transposed: bool, bias: Tensor | None = None) -> Tensor:
    """Logits of all words; see ``linear_cross_entropy`` for a loss that never holds them all.

    Args:
        hidden: [.., H]. weight: [H, V], or [V, H] when ``transposed``: in the dtype of ``hidden``, frozen in bfloat16, or
            int8 values that are bound in ``quantized_heads``. bias: [V].
    Returns:
        float32 [.., V]; float64 of float64.
    """
    quantized = head_matrix(weight)
    if quantized is not None:
        logits = quantized_linear(hidden, quantized)
    elif weight.dtype == paddle.bfloat16 and hidden.dtype == paddle.float32:
        logits = frozen_linear(hidden, weight, transposed=transposed)
    else:
        logits = paddle.matmul(hidden, weight, transpose_y=transposed)
    logits = logits if bias is None else logits + bias
    return logits if logits.dtype == paddle.float64 else logits.astype("float32")


def quantized_rows(ids: Tensor, weight: QuantizedMatrix) -> Tensor:
    """The rows of an int8 ``weight`` at integers [..], dequantized: float32 [.., H]. No gradient.

    Raises:
        ValueError: another quant dtype than int8, or scales of groups.
    """
    if weight.quant_dtype != "int8" or weight.group:
        raise ValueError(f"rows are looked up in int8 with a scale per row, found {weight.quant_dtype}")
    flat = ids.reshape([-1])
    rows = paddle.gather(weight.qweight, flat).astype("float32") * paddle.gather(weight.scales, flat).unsqueeze(-1)
    found: Tensor = rows.reshape([*ids.shape, weight.inputs])
    return found
