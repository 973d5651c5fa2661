"""Products of rows sorted by expert with their experts' matrices for GPUs, and the gradients of both. Each program makes one
tile of the result; which expert's rows it covers is looked up in a short table made from the number of rows of each expert.
"""

import numpy as np
import triton
import triton.language as tl

from ernie_third_party_kernels.gpu import cdiv, empty, tensor_like


@triton.jit
def grouped_kernel(
    x, w, y, tiles, starts, I, O, TURNED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr
):
    """y [N, O] = x [N, I] w, w [E, I, O], or [E, O, I] when ``TURNED``."""
    e = tl.load(tiles + 2 * tl.program_id(0)).to(tl.int64)
    first = tl.load(tiles + 2 * tl.program_id(0) + 1)
    stop = tl.load(starts + e + 1)
    r, c = first + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    by_input = 1 if TURNED else O
    by_output = I if TURNED else 1
    w += e * I * O + c[None, :].to(tl.int64) * by_output
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for begin in range(0, I, DEPTH):
        i = begin + tl.arange(0, DEPTH)
        left = (r[:, None] < stop) & (i[None, :] < I)
        right = (i[:, None] < I) & (c[None, :] < O)
        a = tl.load(x + r[:, None].to(tl.int64) * I + i[None, :], mask=left, other=0.0)
        b = tl.load(w + i[:, None].to(tl.int64) * by_input, mask=right, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    out = y + r[:, None].to(tl.int64) * O + c[None, :]
    tl.store(out, total.to(y.dtype.element_ty), mask=(r[:, None] < stop) & (c[None, :] < O))


@triton.jit
def gradient_kernel(x, dy, dw, starts, I, O, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """dw [E, I, O]: of each expert x^T dy over its rows; 0 without rows."""
    e = tl.program_id(2).to(tl.int64)
    i, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    stop = tl.load(starts + e + 1)
    for begin in range(tl.load(starts + e), stop, DEPTH):
        r = begin + tl.arange(0, DEPTH)
        left, right = (r[None, :] < stop) & (i[:, None] < I), (r[:, None] < stop) & (c[None, :] < O)
        a = tl.load(x + r[None, :].to(tl.int64) * I + i[:, None], mask=left, other=0.0)
        b = tl.load(dy + r[:, None].to(tl.int64) * O + c[None, :], mask=right, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    places = dw + e * I * O + i[:, None].to(tl.int64) * O + c[None, :]
    tl.store(places, total.to(dw.dtype.element_ty), mask=(i[:, None] < I) & (c[None, :] < O))


def _tiles(x, rows):
    """Large tiles where there are rows for them; half of it where numbers take twice the room."""
    if str(x.dtype).endswith("float32"):
        return {"ROWS": 64, "COLUMNS": 64, "DEPTH": 32, "num_warps": 4, "num_stages": 2}
    return {"ROWS": 128 if rows > 64 else 64, "COLUMNS": 128, "DEPTH": 64, "num_warps": 8, "num_stages": 3}


def product(x, weight, counts, turned=False):
    """``y[n] = x[n] weight[e(n)]``: x [N, I] sorted by expert, weight [E, I, O] (``turned``: [E, O, I], which makes dx of dy),
    counts: rows of each expert -> [N, O]."""
    (N, I), O = x.shape, weight.shape[1 if turned else 2]
    y, starts, sizes = empty(x, [N, O]), np.concatenate([[0], np.cumsum(counts)]), _tiles(x, N / len(counts))
    tiles = [(e, first) for e, n in enumerate(counts) for first in range(starts[e], starts[e] + n, sizes["ROWS"])]
    table, ends = tensor_like(x, tiles, "int32"), tensor_like(x, starts, "int32")
    grid = (len(tiles), cdiv(O, sizes["COLUMNS"]))
    grouped_kernel[grid](x, weight, y, table, ends, I, O, TURNED=turned, **sizes)
    return y


def weight_gradient(x, dy, counts):
    """dw [E, I, O] of x [N, I] and dy [N, O], both sorted by expert."""
    (_, I), O, E, sizes = x.shape, dy.shape[1], len(counts), _tiles(x, 128)
    dw, ends = empty(x, [E, I, O]), tensor_like(x, np.concatenate([[0], np.cumsum(counts)]), "int32")
    gradient_kernel[(cdiv(I, sizes["ROWS"]), cdiv(O, sizes["COLUMNS"]), E)](x, dy, dw, ends, I, O, **sizes)
    return dw


_TYPES = {
    **dict.fromkeys(("x", "w", "y", "dy", "dw"), "*bf16"),
    "tiles": "*i32",
    "starts": "*i32",
    "I": "i32",
    "O": "i32",
}
_SIZES = {"ROWS": 128, "COLUMNS": 128, "DEPTH": 64}
COMPILED = [
    (
        kernel,
        {name: _TYPES[name] for name in kernel.arg_names if name in _TYPES},
        sizes,
        {"num_warps": 8, "num_stages": 3},
    )
    for kernel, sizes in (
        (grouped_kernel, {**_SIZES, "TURNED": False}),
        (grouped_kernel, {**_SIZES, "TURNED": True}),
        (gradient_kernel, _SIZES),
    )
]
