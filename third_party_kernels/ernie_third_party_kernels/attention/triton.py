"""Causal attention with row-index masks for GPUs, forward and backward: blocks of keys with a running maximum and sum, grouped
heads, no scores in memory, no atomic additions. Key j is seen by row i if j <= i + K - S and i < ends[j]. Blocks that the
diagonal or the end rows hide from all rows are left out. Powers are of two: ``lse`` is a logarithm to base 2.
"""

import triton
import triton.language as tl

from ernie_third_party_kernels.gpu import cdiv, empty, power_of_two

LOG2E = tl.constexpr(1.4426950408889634)
SCAN = tl.constexpr(1024)


@triton.jit
def _block(base, at, count, step, d, D: tl.constexpr):
    """Rows ``at`` of a matrix whose rows are ``step`` apart; zeros outside."""
    places = at[:, None].to(tl.int64) * step + d[None, :]
    return tl.load(base + places, mask=(at[:, None] < count) & (d[None, :] < D), other=0.0)


@triton.jit
def _seen(r, j, ends, S, K, MASKED: tl.constexpr):
    seen = (j[None, :] <= r[:, None] + K - S) & (j[None, :] < K) & (r[:, None] < S)
    if MASKED:
        seen = seen & (r[:, None] < tl.load(ends + j, mask=j < K, other=0)[None, :])
    return seen


@triton.jit
def _first_key(ends, row, K, KEYS: tl.constexpr):
    """The first block of keys of which some end behind ``row``."""
    found = K
    for begin in range(0, K, SCAN):
        j = begin + tl.arange(0, SCAN)
        found = tl.minimum(found, tl.min(tl.where(tl.load(ends + j, mask=j < K, other=0) > row, j, K), axis=0))
    return found // KEYS * KEYS


@triton.jit
def _more(
    own,
    k,
    v,
    ends,
    r,
    d,
    j,
    S,
    K,
    step,
    scale2,
    top,
    total,
    sums,
    D: tl.constexpr,
    MASKED: tl.constexpr,
    CHECK: tl.constexpr,
):
    """One more block of keys."""
    scores = tl.dot(own, tl.trans(_block(k, j, K, step, d, D)), input_precision="ieee") * scale2
    if CHECK:
        seen = _seen(r, j, ends, S, K, MASKED)
        scores = tl.where(seen, scores, -1.0e30)
    higher = tl.maximum(top, tl.max(scores, axis=1))
    shares = tl.exp2(scores - higher[:, None])
    if CHECK:
        shares = tl.where(seen, shares, 0.0)
    less = tl.exp2(top - higher)
    values = _block(v, j, K, step, d, D)
    sums = sums * less[:, None] + tl.dot(shares.to(values.dtype), values, input_precision="ieee")
    return higher, total * less + tl.sum(shares, axis=1), sums


@triton.jit
def forward_kernel(
    q,
    k,
    v,
    ends,
    y,
    lse,
    S,
    K,
    scale,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    MASKED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    b, h = (tl.program_id(1) // HEADS).to(tl.int64), tl.program_id(1) % HEADS
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS  # the rows with most keys begin
    r, d, step = first + tl.arange(0, ROWS), tl.arange(0, WIDTH), HEADS // SHARED * D
    own_part, shared_part = (b * S * HEADS + h) * D, b * K * step + h // SHARED * D
    own = _block(q + own_part, r, S, HEADS * D, d, D)
    stop, begin = tl.minimum(K, first + ROWS + K - S), 0
    if MASKED:
        begin = _first_key(ends + b * K, first, K, KEYS)
        whole = begin
    else:
        whole = tl.minimum(tl.maximum(first + K - S + 1, 0), K) // KEYS * KEYS
    top = tl.full((ROWS,), -1.0e30, dtype=tl.float32)
    total, sums = tl.zeros((ROWS,), dtype=tl.float32), tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    k, v, ends, scale2 = k + shared_part, v + shared_part, ends + b * K, scale * LOG2E
    for start in range(begin, whole, KEYS):
        j = start + tl.arange(0, KEYS)
        top, total, sums = _more(own, k, v, ends, r, d, j, S, K, step, scale2, top, total, sums, D, MASKED, False)
    for start in range(whole, stop, KEYS):
        j = start + tl.arange(0, KEYS)
        top, total, sums = _more(own, k, v, ends, r, d, j, S, K, step, scale2, top, total, sums, D, MASKED, True)
    safe = tl.where(total > 0.0, total, 1.0)
    inside = (r[:, None] < S) & (d[None, :] < D)
    places = y + own_part + r[:, None].to(tl.int64) * (HEADS * D) + d[None, :]
    tl.store(places, (sums / safe[:, None]).to(y.dtype.element_ty), mask=inside)
    tl.store(lse + (b * HEADS + h) * S + r, top + tl.log2(safe), mask=r < S)


@triton.jit
def product_kernel(y, dy, sums, S, HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Sum of y dy of each row and head: what a softmax takes off its gradient."""
    b, h = (tl.program_id(1) // HEADS).to(tl.int64), tl.program_id(1) % HEADS
    r, d, part = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH), (b * S * HEADS + h) * D
    left = _block(y + part, r, S, HEADS * D, d, D).to(tl.float32)
    right = _block(dy + part, r, S, HEADS * D, d, D).to(tl.float32)
    tl.store(sums + (b * HEADS + h) * S + r, tl.sum(left * right, axis=1), mask=r < S)


@triton.jit
def _slopes(own, d_own, keys, values, r, j, ends, lse, sums, S, K, scale, MASKED: tl.constexpr):
    """(shares, their slopes times the scale) of a block [rows, keys]."""
    scores = tl.dot(own, tl.trans(keys), input_precision="ieee") * (scale * LOG2E)
    height = tl.load(lse + r, mask=r < S, other=0.0)
    shares = tl.where(_seen(r, j, ends, S, K, MASKED), tl.exp2(scores - height[:, None]), 0.0)
    wanted = tl.dot(d_own, tl.trans(values), input_precision="ieee")
    return shares, shares * (wanted - tl.load(sums + r, mask=r < S, other=0.0)[:, None]) * scale


@triton.jit
def query_kernel(
    q,
    k,
    v,
    dy,
    ends,
    lse,
    sums,
    dq,
    S,
    K,
    scale,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    MASKED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    b, h = (tl.program_id(1) // HEADS).to(tl.int64), tl.program_id(1) % HEADS
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    r, d, step = first + tl.arange(0, ROWS), tl.arange(0, WIDTH), HEADS // SHARED * D
    own_part, shared_part, ends = (b * S * HEADS + h) * D, b * K * step + h // SHARED * D, ends + b * K
    own, d_own = _block(q + own_part, r, S, HEADS * D, d, D), _block(dy + own_part, r, S, HEADS * D, d, D)
    lse, sums, begin = lse + (b * HEADS + h) * S, sums + (b * HEADS + h) * S, 0
    if MASKED:
        begin = _first_key(ends, first, K, KEYS)
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for start in range(begin, tl.minimum(K, first + ROWS + K - S), KEYS):
        j = start + tl.arange(0, KEYS)
        keys, values = _block(k + shared_part, j, K, step, d, D), _block(v + shared_part, j, K, step, d, D)
        _, slopes = _slopes(own, d_own, keys, values, r, j, ends, lse, sums, S, K, scale, MASKED)
        total += tl.dot(slopes.to(keys.dtype), keys, input_precision="ieee")
    places = dq + own_part + r[:, None].to(tl.int64) * (HEADS * D) + d[None, :]
    tl.store(places, total.to(dq.dtype.element_ty), mask=(r[:, None] < S) & (d[None, :] < D))


@triton.jit
def key_kernel(
    q,
    k,
    v,
    dy,
    ends,
    lse,
    sums,
    dk,
    dv,
    S,
    K,
    scale,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    MASKED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    shared: tl.constexpr = HEADS // SHARED
    b, g = (tl.program_id(1) // shared).to(tl.int64), tl.program_id(1) % shared
    first = tl.program_id(0) * KEYS  # the keys that most rows see begin
    j, d, part = first + tl.arange(0, KEYS), tl.arange(0, WIDTH), (b * K * shared + g) * D
    keys, values = _block(k + part, j, K, shared * D, d, D), _block(v + part, j, K, shared * D, d, D)
    ends, stop = ends + b * K, S
    if MASKED:
        stop = tl.minimum(S, tl.max(tl.load(ends + j, mask=j < K, other=0), axis=0))
    begin = tl.maximum(first - (K - S), 0) // ROWS * ROWS
    d_keys, d_values = tl.zeros((KEYS, WIDTH), dtype=tl.float32), tl.zeros((KEYS, WIDTH), dtype=tl.float32)
    for n in range(SHARED):
        h = g * SHARED + n
        own_part, row_part = (b * S * HEADS + h) * D, (b * HEADS + h) * S
        for start in range(begin, stop, ROWS):
            r = start + tl.arange(0, ROWS)
            own, d_own = _block(q + own_part, r, S, HEADS * D, d, D), _block(dy + own_part, r, S, HEADS * D, d, D)
            both = _slopes(own, d_own, keys, values, r, j, ends, lse + row_part, sums + row_part, S, K, scale, MASKED)
            d_values += tl.dot(tl.trans(both[0].to(own.dtype)), d_own, input_precision="ieee")
            d_keys += tl.dot(tl.trans(both[1].to(own.dtype)), own, input_precision="ieee")
    places, inside = part + j[:, None].to(tl.int64) * (shared * D) + d[None, :], (j[:, None] < K) & (d[None, :] < D)
    tl.store(dk + places, d_keys.to(dk.dtype.element_ty), mask=inside)
    tl.store(dv + places, d_values.to(dv.dtype.element_ty), mask=inside)


def _sizes(q, k, ends):
    heads, d = q.shape[2:]
    sizes = {"HEADS": heads, "SHARED": heads // k.shape[2], "D": d, "WIDTH": max(16, power_of_two(d))}
    return sizes | {"MASKED": ends is not None}


def _tiles(q, rows):
    """Rows and keys of a block, and how it is launched: half of it where numbers take twice the room."""
    wide = str(q.dtype).endswith("float32")
    return {"ROWS": 32 if wide else rows, "KEYS": 32 if wide else 64, "num_warps": 4 if rows < 128 else 8}


def forward(q, k, v, ends, scale):
    """(y [B, S, h, d], log2-sum-exp [B, h, S]); q [B, S, h, d], k and v [B, K, hk, d], ends int32 [B, K] or None."""
    (B, S, heads, d), K = q.shape, k.shape[1]
    y, lse, tiles = empty(q, [B, S, heads, d]), empty(q, [B, heads, S], "float32"), _tiles(q, 128)
    mask = q if ends is None else ends  # some pointer where it is not read
    grid = (cdiv(S, tiles["ROWS"]), B * heads)
    forward_kernel[grid](q, k, v, mask, y, lse, S, K, scale, **_sizes(q, k, ends), **tiles, num_stages=3)
    return y, lse


def backward(q, k, v, y, lse, dy, ends, scale):
    """(dq, dk, dv) of what :func:`forward` made of the same arguments."""
    (B, S, heads, d), (K, shared), sizes, tiles = q.shape, k.shape[1:3], _sizes(q, k, ends), _tiles(q, 64)
    sums, mask = empty(q, [B, heads, S], "float32"), q if ends is None else ends
    rows, keys = cdiv(S, tiles["ROWS"]), cdiv(K, tiles["KEYS"])
    product_kernel[(rows, B * heads)](y, dy, sums, S, HEADS=heads, D=d, WIDTH=sizes["WIDTH"], ROWS=tiles["ROWS"])
    dq, dk, dv = empty(q, [B, S, heads, d]), empty(k, [B, K, shared, d]), empty(v, [B, K, shared, d])
    query_kernel[(rows, B * heads)](q, k, v, dy, mask, lse, sums, dq, S, K, scale, **sizes, **tiles, num_stages=2)
    tiles["num_warps"] = 8  # two sums in registers
    key_kernel[(keys, B * shared)](q, k, v, dy, mask, lse, sums, dk, dv, S, K, scale, **sizes, **tiles, num_stages=2)
    return dq, dk, dv


_TYPES = {**dict.fromkeys(("q", "k", "v", "y", "dy", "dq", "dk", "dv"), "*bf16"), "ends": "*i32", "scale": "fp32"}
_TYPES |= {"lse": "*fp32", "sums": "*fp32", "S": "i32", "K": "i32"}
_SIZES = {"HEADS": 20, "SHARED": 5, "D": 128, "WIDTH": 128, "MASKED": True, "KEYS": 64}
COMPILED = [
    (kernel, {name: _TYPES[name] for name in kernel.arg_names if name in _TYPES}, sizes, options)
    for kernel, sizes, options in (
        (forward_kernel, {**_SIZES, "ROWS": 128}, {"num_warps": 8, "num_stages": 3}),
        (forward_kernel, {**_SIZES, "ROWS": 128, "MASKED": False}, {"num_warps": 8, "num_stages": 3}),
        (product_kernel, {"HEADS": 20, "D": 128, "WIDTH": 128, "ROWS": 64}, {}),
        (query_kernel, {**_SIZES, "ROWS": 64}, {"num_warps": 4, "num_stages": 2}),
        (key_kernel, {**_SIZES, "ROWS": 64}, {"num_warps": 8, "num_stages": 2}),
    )
]
