"""Operators of the models in plain Paddle, for one device. Not layers (no weights live here) and not parallel.

Each operator is one file and one function; a kernel package may replace an implementation, never a signature.
Letters in shapes: B batch, S query positions, K key positions, h query heads, K in ``BKhd`` keys, d head size,
T tokens, H hidden, I intermediate, E experts, k experts per token, V vocabulary.
"""

from erniecore_ops._rematerialize import rematerialized
from erniecore_ops.attention import attention
from erniecore_ops.attention_inputs import AttentionInputs, attention_inputs
from erniecore_ops.bfloat16_weights import exact_bfloat16, frozen_grouped_linear, frozen_linear
from erniecore_ops.decoder_step import DecoderStep, NewTokens, decoder_step
from erniecore_ops.embedding import embedding, shifted
from erniecore_ops.fp8 import FP8, fp8_quantize, hadamard
from erniecore_ops.from_numpy import tensor_of
from erniecore_ops.full_attention import full_attention
from erniecore_ops.gelu import gelu, quick_gelu
from erniecore_ops.grouped_linear import combine, dispatch, grouped_linear, grouped_matmul, grouped_rows
from erniecore_ops.grouped_swiglu import grouped_swiglu
from erniecore_ops.layer_norm import layer_norm
from erniecore_ops.linear_cross_entropy import linear_cross_entropy
from erniecore_ops.matmul import is_plain_linear, linear, matmul
from erniecore_ops.packed_weights import (
    NF4,
    QuantizedMatrix,
    chunked_grouped_matmul,
    dequantize,
    quantized_grouped_matmul,
    quantized_grouped_matmul_backward,
    quantized_matmul,
    quantized_matmul_backward,
    unpack_int4,
)
from erniecore_ops.partial_attention import (
    NOTHING,
    VisibleKeys,
    add_attention,
    partial_attention,
    partial_attention_backward,
)
from erniecore_ops.patch_attention import patch_attention
from erniecore_ops.quantized_head import head_logits, head_matrix, quantized_heads, quantized_rows
from erniecore_ops.quantized_linear import quantized_linear
from erniecore_ops.quantizing import (
    NF4_MIDDLES,
    TOP,
    MeasuredRounding,
    Quantized,
    RoundingError,
    quantize_parts,
    quantize_weight,
)
from erniecore_ops.rms_norm import rms_norm
from erniecore_ops.rope import (
    apply_rope,
    axes_by_parity,
    axes_in_sections,
    rope_frequencies,
    rope_tables,
    rope_tables_2d,
    rope_tables_3d,
)
from erniecore_ops.shards import sharded_ids, sharded_masks, sharded_parameters
from erniecore_ops.swiglu import swiglu
from erniecore_ops.top_experts import top_experts

__all__ = [
    "AttentionInputs",
    "FP8",
    "DecoderStep",
    "NF4",
    "NF4_MIDDLES",
    "NOTHING",
    "MeasuredRounding",
    "NewTokens",
    "Quantized",
    "QuantizedMatrix",
    "RoundingError",
    "TOP",
    "VisibleKeys",
    "add_attention",
    "apply_rope",
    "attention",
    "attention_inputs",
    "full_attention",
    "axes_by_parity",
    "axes_in_sections",
    "combine",
    "decoder_step",
    "dispatch",
    "embedding",
    "exact_bfloat16",
    "fp8_quantize",
    "frozen_grouped_linear",
    "frozen_linear",
    "gelu",
    "grouped_linear",
    "grouped_matmul",
    "grouped_rows",
    "grouped_swiglu",
    "hadamard",
    "head_logits",
    "head_matrix",
    "is_plain_linear",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "matmul",
    "rematerialized",
    "chunked_grouped_matmul",
    "patch_attention",
    "quantize_parts",
    "quantize_weight",
    "partial_attention",
    "partial_attention_backward",
    "quantized_grouped_matmul",
    "quantized_grouped_matmul_backward",
    "dequantize",
    "quantized_heads",
    "quantized_linear",
    "quantized_matmul",
    "quantized_matmul_backward",
    "quantized_rows",
    "quick_gelu",
    "rms_norm",
    "rope_frequencies",
    "rope_tables",
    "rope_tables_2d",
    "rope_tables_3d",
    "sharded_ids",
    "sharded_masks",
    "sharded_parameters",
    "shifted",
    "swiglu",
    "tensor_of",
    "top_experts",
    "unpack_int4",
]
