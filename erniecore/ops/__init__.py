"""Operators of the models in plain Paddle, for one device. Not layers (no weights live here) and not parallel.

Each operator is one file and one function; a kernel package may replace an implementation, never a signature.
Letters in shapes: B batch, S query positions, K key positions, h query heads, K in ``BKhd`` keys, d head size,
T tokens, H hidden, I intermediate, E experts, k experts per token, V vocabulary.
"""

from erniecore.ops._made_again import made_again
from erniecore.ops.attention import attention
from erniecore.ops.decoder_step import DecoderStep, NewTokens, decoder_step
from erniecore.ops.embedding import embedding, shifted
from erniecore.ops.fp8 import FP8, fp8_quantize, hadamard
from erniecore.ops.grouped_linear import combine, dispatch, grouped_linear, grouped_product, grouped_rows
from erniecore.ops.grouped_swiglu import grouped_swiglu
from erniecore.ops.linear_cross_entropy import linear_cross_entropy
from erniecore.ops.packed_weights import (
    NF4,
    PackedMatrix,
    packed_grouped,
    packed_grouped_product,
    packed_numbers,
    packed_product,
    packed_product_back,
    unpack_halves,
)
from erniecore.ops.rms_norm import rms_norm
from erniecore.ops.rope import (
    apply_rope,
    axes_by_parity,
    axes_in_sections,
    rope_frequencies,
    rope_tables,
    rope_tables_2d,
    rope_tables_3d,
)
from erniecore.ops.swiglu import swiglu
from erniecore.ops.top_experts import top_experts

__all__ = [
    "FP8",
    "DecoderStep",
    "NF4",
    "NewTokens",
    "PackedMatrix",
    "apply_rope",
    "attention",
    "axes_by_parity",
    "axes_in_sections",
    "combine",
    "decoder_step",
    "dispatch",
    "embedding",
    "fp8_quantize",
    "grouped_linear",
    "grouped_product",
    "grouped_rows",
    "grouped_swiglu",
    "hadamard",
    "linear_cross_entropy",
    "made_again",
    "packed_grouped",
    "packed_grouped_product",
    "packed_numbers",
    "packed_product",
    "packed_product_back",
    "rms_norm",
    "rope_frequencies",
    "rope_tables",
    "rope_tables_2d",
    "rope_tables_3d",
    "shifted",
    "swiglu",
    "top_experts",
    "unpack_halves",
]
