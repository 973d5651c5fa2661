"""Products with int8 and int4 weights for GPUs: codes are widened in registers on the way into the matrix units. The layout
is erniecore's: [O, I] by outputs, in four bits outputs 2j and 2j + 1 in the halves of a byte."""

import triton
import triton.language as tl

from ernie_third_party_kernels.gpu import cdiv, empty

ROWS, COLUMNS, DEPTH = 16, 64, 64


@triton.jit
def packed_kernel(
    x,
    codes,
    scales,
    y,
    N,
    I,
    O,
    GROUP: tl.constexpr,
    FOUR_BITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    r, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for begin in range(0, I, DEPTH):
        i = begin + tl.arange(0, DEPTH)
        a = tl.load(x + r[:, None] * I + i[None, :], mask=(r[:, None] < N) & (i[None, :] < I), other=0.0)
        inside = (c[None, :] < O) & (i[:, None] < I)
        if FOUR_BITS:
            byte = tl.load(codes + (c[None, :] // 2).to(tl.int64) * I + i[:, None], mask=inside, other=0).to(tl.int32)
            half = tl.where(c[None, :] % 2 == 1, byte >> 4, byte) & 15
            q = ((half ^ 8) - 8).to(tl.float32)
        else:
            q = tl.load(codes + c[None, :].to(tl.int64) * I + i[:, None], mask=inside, other=0).to(tl.float32)
        if GROUP > 0:
            groups = (I + GROUP - 1) // GROUP
            q = q * tl.load(scales + c[None, :] * groups + i[:, None] // GROUP, mask=inside, other=0.0)
        total = tl.dot(a, q.to(a.dtype), total, input_precision="ieee")
    if GROUP == 0:
        total = total * tl.load(scales + c, mask=c < O, other=0.0)[None, :]
    tl.store(y + r[:, None] * O + c[None, :], total.to(y.dtype.element_ty), mask=(r[:, None] < N) & (c[None, :] < O))


def product(x, codes, scales, form, group, outputs):
    """``x W'``: [N, I] -> [N, O]; ``form`` int8 or int4."""
    N, I = x.shape
    y, grid = empty(x, [N, outputs]), (cdiv(N, ROWS), cdiv(outputs, COLUMNS))
    sizes = {"GROUP": group, "FOUR_BITS": form == "int4", "ROWS": ROWS, "COLUMNS": COLUMNS, "DEPTH": DEPTH}
    packed_kernel[grid](x, codes, scales, y, N, I, outputs, **sizes)
    return y


_TYPES = {"x": "*bf16", "codes": "*i8", "scales": "*fp32", "y": "*bf16", "N": "i32", "I": "i32", "O": "i32"}
_SIZES = {"ROWS": ROWS, "COLUMNS": COLUMNS, "DEPTH": DEPTH}
COMPILED = [
    (packed_kernel, _TYPES, {"GROUP": 0, "FOUR_BITS": False, **_SIZES}),
    (packed_kernel, _TYPES, {"GROUP": 64, "FOUR_BITS": True, **_SIZES}),
]
