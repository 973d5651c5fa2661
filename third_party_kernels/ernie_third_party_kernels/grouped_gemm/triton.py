"""Products of rows sorted by expert with their experts' matrices for GPUs. Each program makes one tile of the result; which
expert's rows it covers is looked up in two short tables made from the number of rows of each expert."""

import numpy as np
import triton
import triton.language as tl

from ernie_third_party_kernels.gpu import cdiv, empty, framework, from_array

ROWS, COLUMNS, DEPTH = 64, 64, 32


@triton.jit
def grouped_kernel(
    x,
    w,
    y,
    tiles,
    starts,
    I,
    O,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    e = tl.load(tiles + 2 * tl.program_id(0)).to(tl.int64)
    first = tl.load(tiles + 2 * tl.program_id(0) + 1)
    stop = tl.load(starts + e + 1)
    r, c = first + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for begin in range(0, I, DEPTH):
        i = begin + tl.arange(0, DEPTH)
        a = tl.load(
            x + r[:, None].to(tl.int64) * I + i[None, :], mask=(r[:, None] < stop) & (i[None, :] < I), other=0.0
        )
        b = tl.load(
            w + e * I * O + i[:, None].to(tl.int64) * O + c[None, :],
            mask=(i[:, None] < I) & (c[None, :] < O),
            other=0.0,
        )
        total = tl.dot(a, b, total, input_precision="ieee")
    out = y + r[:, None].to(tl.int64) * O + c[None, :]
    tl.store(out, total.to(y.dtype.element_ty), mask=(r[:, None] < stop) & (c[None, :] < O))


def product(x, weight, counts, device="cuda"):
    """``y[n] = x[n] weight[e(n)]``: x [N, I] sorted by expert, weight [E, I, O], counts: rows of each expert -> [N, O]."""
    (N, I), O = x.shape, weight.shape[2]
    y, starts = empty(x, [N, O]), np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    tiles = [(e, first) for e, n in enumerate(counts) for first in range(starts[e], starts[e] + n, ROWS)]
    lib = framework(type(x).__module__.partition(".")[0])
    table, ends = (from_array(lib, np.asarray(a, np.int32), device) for a in (tiles, starts))
    grid = (len(tiles), cdiv(O, COLUMNS))
    grouped_kernel[grid](x, weight, y, table, ends, I, O, ROWS=ROWS, COLUMNS=COLUMNS, DEPTH=DEPTH)
    return y


COMPILED = [
    (
        grouped_kernel,
        {"x": "*bf16", "w": "*bf16", "y": "*bf16", "tiles": "*i32", "starts": "*i32", "I": "i32", "O": "i32"},
        {"ROWS": ROWS, "COLUMNS": COLUMNS, "DEPTH": DEPTH},
    )
]
