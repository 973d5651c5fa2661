"""Products with int8, int4 and NF4 weights for GPUs: codes are widened in registers on the way into the matrix units. The
layout is erniecore's: [O, I] by outputs, in four bits outputs 2j and 2j + 1 in the halves of a byte. Where there are too few
tiles for a GPU, the inputs are split among programs, whose sums are added afterwards in a fixed order.
"""

import triton
import triton.language as tl

from ernie_third_party_kernels.gpu import cast, cdiv, empty, tensor_like
from ernie_third_party_kernels.packed_weights.levels import NF4

#: COLUMNS: rows of codes of a tile, each of one output or of two
ROWS, COLUMNS, DEPTH = 16, 64, 128
#: Programs that keep a large GPU busy.
PROGRAMS = 512


@triton.jit
def _unpack(half, levels, NF: tl.constexpr):
    """Of four bits (the low ones of ``half``)."""
    if NF:
        return tl.load(levels + ((half & 15) ^ 8))
    return (((half & 15) ^ 8) - 8).to(tl.float32)


@triton.jit
def _scale(scales, c, begin, O, I, GROUP: tl.constexpr):
    """Of outputs ``c`` for the inputs from ``begin`` on, which are in one group."""
    groups = (I + GROUP - 1) // GROUP
    return tl.load(scales + c.to(tl.int64) * groups + begin // GROUP, mask=c < O, other=0.0)[None, :]


@triton.jit
def _keep(y, total, scales, r, c, N, O, GROUP: tl.constexpr):
    if GROUP == 0:
        total = total * tl.load(scales + c, mask=c < O, other=0.0)[None, :]
    places = y + r[:, None].to(tl.int64) * O + c[None, :]
    tl.store(places, total.to(y.dtype.element_ty), mask=(r[:, None] < N) & (c[None, :] < O))


@triton.jit
def packed_kernel(
    x,
    qweight,
    scales,
    levels,
    y,
    N,
    I,
    O,
    share,
    GROUP: tl.constexpr,
    FOUR_BITS: tl.constexpr,
    NF: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    r, at = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    y += tl.program_id(2).to(tl.int64) * N * O
    low, high = tl.zeros((ROWS, COLUMNS), dtype=tl.float32), tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    stored = (O + 1) // 2 if FOUR_BITS else O
    even = 2 * at if FOUR_BITS else at
    for begin in range(tl.program_id(2) * share, tl.minimum(I, (tl.program_id(2) + 1) * share), DEPTH):
        i = begin + tl.arange(0, DEPTH)
        a = tl.load(x + r[:, None].to(tl.int64) * I + i[None, :], mask=(r[:, None] < N) & (i[None, :] < I), other=0.0)
        inside = (at[None, :] < stored) & (i[:, None] < I)
        code = tl.load(qweight + at[None, :].to(tl.int64) * I + i[:, None], mask=inside, other=0)
        if FOUR_BITS:
            first, second = _unpack(code.to(tl.int32), levels, NF), _unpack(code.to(tl.int32) >> 4, levels, NF)
            if GROUP > 0:
                part = tl.dot(a, second.to(a.dtype), input_precision="ieee")
                high += part * _scale(scales, even + 1, begin, O, I, GROUP)
            else:
                high = tl.dot(a, second.to(a.dtype), high, input_precision="ieee")
        else:
            first = code.to(tl.float32)
        if GROUP > 0:
            part = tl.dot(a, first.to(a.dtype), input_precision="ieee")
            low += part * _scale(scales, even, begin, O, I, GROUP)
        else:
            low = tl.dot(a, first.to(a.dtype), low, input_precision="ieee")
    _keep(y, low, scales, r, even, N, O, GROUP)
    if FOUR_BITS:
        _keep(y, high, scales, r, even + 1, N, O, GROUP)


def matmul(x, qweight, scales, quant_dtype, group, outputs):
    """``x W'``: [N, I] -> [N, O]; ``quant_dtype`` int8, int4 or nf4; ``group`` 0 or a power of two, at least 16."""
    N, I = x.shape
    depth = min(DEPTH, group) if group else DEPTH
    rows, columns = cdiv(N, ROWS), cdiv(qweight.shape[0], COLUMNS)
    parts = max(1, min(PROGRAMS // (rows * columns), I // (4 * depth)))
    share = cdiv(cdiv(I, parts), depth) * depth
    parts = cdiv(I, share)
    y = empty(x, [parts, N, outputs], "float32" if parts > 1 else "")
    levels = tensor_like(scales, NF4) if quant_dtype == "nf4" else scales
    sizes = {"GROUP": group, "FOUR_BITS": quant_dtype != "int8", "NF": quant_dtype == "nf4"}
    tiles = {"ROWS": ROWS, "COLUMNS": COLUMNS, "DEPTH": depth, "num_warps": 4, "num_stages": 3}
    packed_kernel[(rows, columns, parts)](x, qweight, scales, levels, y, N, I, outputs, share, **sizes, **tiles)
    return y.reshape([N, outputs]) if parts == 1 else cast(y.sum(0), x)


_TYPES = {"x": "*bf16", "qweight": "*i8", "scales": "*fp32", "levels": "*fp32", "y": "*fp32"}
_TYPES |= dict.fromkeys(("N", "I", "O", "share"), "i32")
_TILES = {"ROWS": ROWS, "COLUMNS": COLUMNS}
COMPILED = [
    (packed_kernel, _TYPES, {**kind, **_TILES}, {"num_warps": 4, "num_stages": 3})
    for kind in (
        {"GROUP": 0, "FOUR_BITS": False, "NF": False, "DEPTH": DEPTH},
        {"GROUP": 64, "FOUR_BITS": True, "NF": False, "DEPTH": 64},
        {"GROUP": 64, "FOUR_BITS": True, "NF": True, "DEPTH": 64},
    )
]
