"""Weights to quantized values and scales, and back: exact definitions, no layers.

A weight W [.., I, O] is stored transposed, [.., O, I]. Inputs of an output are cut into groups of g (the last may be
shorter; one group when g is 0), each with a float32 scale s:

    int8   s = max|W| / 127    q = round(W / s)                      W' = s q       (round half to even)
    int4   s = max|W| / 7      q = round(W / s)                      W' = s q
    nf4    s = max|W|          q = index of the nearest NF4 level    W' = s NF4[q]

A scale of zero (a group of zeros) becomes 1. int8 values are stored as int8 [.., O, I]. Four-bit values are stored two per byte
along the outputs, int8 [.., ceil(O / 2), I]: outputs 2j and 2j + 1 in the low and the high four bits, nf4 as index - 8.
Sources: symmetric abs-max rounding as in arXiv:2208.07339, section 2.1; NF4: arXiv:2305.14314, appendix E.

Letters: I inputs, O outputs, E experts, G groups; ``..`` is E or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore.api import NumericsError, ops
from erniecore.api.layers import filled, stored_parts, stored_values
from erniecore_weight_only.schemes import Scheme

NF4 = ops.NF4
#: weights that are quantized at a time (16 MiB in float32); one expert or two outputs at least
PART = 1 << 22
#: dtypes whose values float32 can hold
_EXACT = ("float32", "bfloat16", "float16")


class Packed(NamedTuple):
    """Quantized values int8 [.., rows, I] and scales float32 [.., O], or [.., O, G] when there are groups."""

    qweight: Tensor
    scales: Tensor


def encode(weight: Tensor, scheme: Scheme, where: str) -> Packed:
    """Quantized values and scales of ``weight`` [.., I, O], computed for some outputs or experts at a time to save memory; on
    the CPU on all cores.

    Raises:
        NumericsError: a value that is not finite; ``where`` names the weight.
    """
    if weight.place.is_cpu_place() and weight.size:
        return _encode_on_host(weight, scheme, where)
    return _encode_in_parts(weight, scheme, where)


def encode_stored(weight: Tensor, scheme: Scheme) -> tuple[Packed, ops.RoundingError] | None:
    """As :func:`encode`, of an empty float32 ``weight``, which stays empty: its matrices are read from the file one by one. Also
    what quantization changes. None: its values come from elsewhere, or the file has a dtype that float32 cannot hold.

    Raises:
        NumericsError: a value that is not finite.
    """
    found = stored_parts(weight) if weight.dtype == paddle.float32 and math.prod(weight.shape) else None
    if found is None or found[0] not in _EXACT:
        return None
    dtype, parts = found
    made = ops.quantize_parts(parts, dtype, weight.shape, scheme.quant_dtype, scheme.group)
    return _packed(made, scheme), made.error


def encode_rows(
    weight: Tensor, scheme: Scheme, where: str, *, rows_first: bool
) -> tuple[Packed, ops.RoundingError | None]:
    """Of a head or an embedding, and what quantization changes, where that was measured; ``weight`` may be empty, and stays so
    where its file is read row by row.

    Args:
        weight: [O, I] if ``rows_first``, else [I, O].
    Raises:
        NumericsError: a value that is not finite; ``where`` names the weight.
    """
    if not rows_first:
        found = encode_stored(weight, scheme)
        return found if found is not None else (encode(filled(weight), scheme, where), None)
    outputs, inputs = weight.shape
    stored = stored_parts(weight) if weight.dtype == paddle.float32 else None
    if stored is None or stored[0] not in _EXACT:
        values = filled(weight).detach()
        if not values.place.is_cpu_place():
            return _encode_in_parts(values.t(), scheme, where), None
        stored = "float32", iter([values.astype("float32").contiguous().numpy()])
    made = ops.quantize_parts(
        (part.T for part in stored[1]), stored[0], [inputs, outputs], scheme.quant_dtype, scheme.group
    )
    _check_finite(made.scales, weight, where)
    return _packed(made, scheme), made.error


def bfloat16_values(weight: Tensor, where: str) -> tuple[Tensor, bool]:
    """``weight`` in bfloat16, a view of the mapped file where that has it so, else rounded to nearest; and whether its last two
    axes are swapped.

    Raises:
        NumericsError: a value that is not finite; ``where`` names the weight.
    """
    found = stored_values(weight, "bfloat16")
    if found is None:
        found = filled(weight).detach().astype("bfloat16"), False
        if not bool(paddle.isfinite(found[0]).all()):
            raise NumericsError("this weight holds values that are not finite in bfloat16", where=where)
    return found


def _encode_in_parts(weight: Tensor, scheme: Scheme, where: str) -> Packed:
    """On any device."""
    parts = [_encode(part, scheme, where) for part in _parts(weight)]
    if len(parts) == 1:
        return parts[0]
    return Packed(paddle.concat([part.qweight for part in parts]), paddle.concat([part.scales for part in parts]))


def _encode_on_host(weight: Tensor, scheme: Scheme, where: str) -> Packed:
    made = ops.quantize_weight(weight, scheme.quant_dtype, scheme.group)
    _check_finite(made.scales, weight, where)
    return _packed(made, scheme)


def _packed(made: ops.Quantized, scheme: Scheme) -> Packed:
    return Packed(made.values, made.scales if scheme.group else made.scales.squeeze(-1))


def _check_finite(made: Tensor, weight: Tensor, where: str) -> None:
    """Raises ``NumericsError`` if ``made``, which is made of all of ``weight``, is not finite."""
    if not bool(paddle.isfinite(made).all()):
        count = int((~paddle.isfinite(weight)).sum())
        raise NumericsError("a weight that is not finite cannot be quantized", where=where, found=f"{count} values")


def _parts(weight: Tensor) -> Iterator[Tensor]:
    """Experts of a stack, an even number of outputs of a matrix: slices that concatenate along the first axis."""
    axis = 0 if weight.ndim == 3 else 1
    width = weight.shape[axis]
    each = max(int(weight.size) // max(width, 1), 1)
    step = max(1, PART // each) if axis == 0 else max(2, PART // each // 2 * 2)
    for start in range(0, max(width, 1), step):
        part = slice(start, min(start + step, width))
        yield weight.detach()[part] if axis == 0 else weight.detach()[:, part]


def _encode(weight: Tensor, scheme: Scheme, where: str) -> Packed:
    with paddle.no_grad():
        last = weight.ndim - 1
        w = weight.astype("float32").transpose([*range(last - 1), last, last - 1])
        _check_finite(w, w, where)
        scales = _grouped(w.abs(), scheme.group).max(axis=-1) / ops.TOP[scheme.quant_dtype]
        scales = paddle.where(scales == 0, paddle.ones_like(scales), scales)
        qweight = _quantize(w / _spread(scales, scheme.group, w.shape[-1]), scheme.quant_dtype)
        stored = qweight if scheme.bits == 8 else pack(qweight)
        return Packed(stored, scales if scheme.group else scales.squeeze(-1))


def decode(packed: Packed, scheme: Scheme, outputs: int) -> Tensor:
    """W' transposed, float32 [.., O, I]; ``outputs`` is O."""
    return ops.dequantize(matrix(packed, scheme, outputs))


def matrix(packed: Packed, scheme: Scheme, outputs: int) -> ops.QuantizedMatrix:
    """The weight as operators take it."""
    return ops.QuantizedMatrix(packed.qweight, packed.scales, scheme.quant_dtype, scheme.group, outputs)


def pack(qweight: Tensor) -> Tensor:
    """int8 [.., O, I] with values -8 .. 7 -> int8 [.., ceil(O / 2), I]; a missing last output is stored as 0."""
    if qweight.shape[-2] % 2:
        qweight = paddle.concat([qweight, paddle.zeros_like(qweight[..., :1, :])], axis=-2)
    low, high = qweight[..., 0::2, :], qweight[..., 1::2, :]
    return (low & _int8(15)) | paddle.bitwise_left_shift(high, _int8(4))


def unpack(stored: Tensor, outputs: int) -> Tensor:
    """The quantized values [.., O, I] that :func:`pack` stored, sign-extended."""
    return ops.unpack_int4(stored, outputs)


def _int8(value: int) -> Tensor:
    return paddle.to_tensor(value, "int8")


def _quantize(ratio: Tensor, quant_dtype: str) -> Tensor:
    if quant_dtype == "nf4":
        return (paddle.bucketize(ratio, paddle.to_tensor(ops.NF4_MIDDLES, "float32")) - 8).astype("int8")
    return paddle.round(ratio).clip(-ops.TOP[quant_dtype], ops.TOP[quant_dtype]).astype("int8")


def _grouped(w: Tensor, group: int) -> Tensor:
    """[.., O, I] -> [.., O, G, g]; what a short last group lacks is zero."""
    *front, inputs = w.shape
    if not group:
        return w.unsqueeze(-2)
    missing = -inputs % group
    if missing:
        w = paddle.concat([w, paddle.zeros([*front, missing], w.dtype)], axis=-1)
    return w.reshape([*front, -1, group])


def _spread(scales: Tensor, group: int, inputs: int) -> Tensor:
    """[.., O, G] -> [.., O, I], or [.., O, 1] with one group."""
    return paddle.repeat_interleave(scales, group, axis=-1)[..., :inputs] if group else scales
