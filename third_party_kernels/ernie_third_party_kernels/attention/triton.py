"""Causal attention with row-index masks for GPUs, forward: blocks of keys with a running maximum and sum, grouped heads, no
scores in memory. Key j is seen by row i if j <= i + K - S and i < ends[j]. Blocks of keys beyond the diagonal are left out."""

import triton
import triton.language as tl

from ernie_third_party_kernels.gpu import cdiv, empty, power_of_two

ROWS, KEYS = 64, 64


@triton.jit
def attention_kernel(
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
    first = tl.program_id(0) * ROWS
    r, d = first + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    key_heads = HEADS // SHARED
    rows = ((b * S + r[:, None]) * HEADS + h) * D + d[None, :]
    own = tl.load(q + rows, mask=(r[:, None] < S) & (d[None, :] < D), other=0.0)
    top = tl.full((ROWS,), -1.0e30, dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    sums = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for begin in range(0, tl.minimum(K, first + ROWS + K - S), KEYS):
        j = begin + tl.arange(0, KEYS)
        places = ((b * K + j[:, None]) * key_heads + h // SHARED) * D + d[None, :]
        inside = (j[:, None] < K) & (d[None, :] < D)
        keys = tl.load(k + places, mask=inside, other=0.0)
        scores = tl.dot(own, tl.trans(keys), input_precision="ieee") * scale
        seen = (j[None, :] <= r[:, None] + K - S) & (j[None, :] < K)
        if MASKED:
            seen = seen & (r[:, None] < tl.load(ends + b * K + j, mask=j < K, other=0)[None, :])
        scores = tl.where(seen, scores, -1.0e30)
        higher = tl.maximum(top, tl.max(scores, axis=1))
        shares = tl.where(seen, tl.exp(scores - higher[:, None]), 0.0)
        less = tl.exp(top - higher)
        total = total * less + tl.sum(shares, axis=1)
        values = tl.load(v + places, mask=inside, other=0.0)
        sums = sums * less[:, None] + tl.dot(shares.to(values.dtype), values, input_precision="ieee")
        top = higher
    safe = tl.where(total > 0.0, total, 1.0)
    tl.store(y + rows, (sums / safe[:, None]).to(y.dtype.element_ty), mask=(r[:, None] < S) & (d[None, :] < D))
    tl.store(lse + (b * HEADS + h) * S + r, top + tl.log(safe), mask=r < S)


def forward(q, k, v, ends, scale):
    """(y [B, S, h, d], log-sum-exp [B, h, S]); q [B, S, h, d], k and v [B, K, hk, d], ends int32 [B, K] or None."""
    (B, S, heads, d), K = q.shape, k.shape[1]
    y, lse = empty(q, [B, S, heads, d]), empty(q, [B, heads, S], "float32")
    sizes = {"HEADS": heads, "SHARED": heads // k.shape[2], "D": d, "WIDTH": max(16, power_of_two(d))}
    grid = (cdiv(S, ROWS), B * heads)
    mask = q if ends is None else ends  # some pointer where it is not read
    attention_kernel[grid](q, k, v, mask, y, lse, S, K, scale, **sizes, MASKED=ends is not None, ROWS=ROWS, KEYS=KEYS)
    return y, lse


COMPILED = [
    (
        attention_kernel,
        {
            **dict.fromkeys(("q", "k", "v", "y"), "*bf16"),
            **{"ends": "*i32", "lse": "*fp32", "S": "i32", "K": "i32", "scale": "fp32"},
        },
        {"HEADS": 20, "SHARED": 5, "D": 128, "WIDTH": 128, "MASKED": True, "ROWS": ROWS, "KEYS": KEYS},
    )
]
