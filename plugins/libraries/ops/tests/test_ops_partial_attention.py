"""Attention to some keys at a time is attention to all of them: results, logarithms of sums, and gradients."""

import numpy as np
import paddle
import pytest
from erniecore_ops.functions import (
    NOTHING,
    VisibleKeys,
    add_attention,
    attention,
    partial_attention,
    partial_attention_backward,
)

#: B, S, query heads, key heads, d; S is two chunks
SHAPES = [(1, 2, 1, 1, 4), (2, 48, 4, 2, 8), (1, 300, 6, 2, 16)]


def packed(rng, B, S):
    """End rows of samples; behind the last one is padding, which nobody sees."""
    ends = np.tile(np.arange(S, dtype=np.int32), (B, 1))
    for row in ends:
        start = 0
        for stop in np.sort(rng.integers(0, S + 1, 3)):
            row[start:stop], start = stop, stop
    return ends


def made(shape, masks):
    B, S, hq, hk, d = shape
    rng = np.random.default_rng(S)
    arrays = [rng.standard_normal(s) for s in ((B, S, hq, d), (B, S, hk, d), (B, S, hk, d), (B, S, hq, d))]
    ends = packed(rng, B, S) if masks else np.full((B, S), S, np.int32)
    return [paddle.to_tensor(x, dtype="float64") for x in arrays], ends


def blocks(ends, S):
    """The queries in two halves: each against its own keys, and the second one against the keys of the first."""
    half = S // 2
    for rows, keys, causal in (
        (slice(0, half), slice(0, half), True),
        (slice(half, S), slice(half, S), True),
        (slice(half, S), slice(0, half), False),
    ):
        yield rows, keys, VisibleKeys(np.clip(ends[:, keys] - rows.start, 0, half), half, causal=causal)


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_parts_are_the_whole(shape, masks):
    (q, k, v, dy), ends = made(shape, masks)
    S, scale = shape[1], 0.3
    for x in (q, k, v):
        x.stop_gradient = False
    whole = attention(q, k, v, startend_row_indices=paddle.to_tensor(ends.reshape(shape[0], 1, S, 1)), scale=scale)
    whole.backward(dy)
    wanted = [whole, q.grad, k.grad, v.grad]
    q, k, v = (x.detach() for x in (q, k, v))
    halves: dict[int, tuple] = {}
    for rows, keys, visible in blocks(ends, S):
        one = partial_attention(q[:, rows], k[:, keys], v[:, keys], visible, scale)
        halves[rows.start] = add_attention(halves[rows.start], one) if rows.start in halves else one
    out, lse = paddle.concat([halves[n][0] for n in halves], 1), paddle.concat([halves[n][1] for n in halves], 2)
    dq, dk, dv = (paddle.zeros_like(x) for x in (q, k, v))
    for rows, keys, visible in blocks(ends, S):
        given = q[:, rows], k[:, keys], v[:, keys], out[:, rows], lse[:, :, rows], dy[:, rows]
        found = partial_attention_backward(*given, visible, scale)
        dq[:, rows] += found[0]
        dk[:, keys] += found[1]
        dv[:, keys] += found[2]
    for one, other in zip((out, dq, dk, dv), wanted, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-10, atol=1e-12)
    scores = np.einsum("bshd,bkhd->bhsk", q.numpy(), k.numpy().repeat(shape[2] // shape[3], axis=2)) * scale
    row, key = np.arange(S)[:, None], np.arange(S)
    visible = (key <= row) & (row < ends[:, None, :])
    sums = np.where(visible[:, None], np.exp(scores), 0).sum(axis=-1)
    logs = np.log2(sums, out=np.full_like(sums, NOTHING), where=sums > 0)
    np.testing.assert_allclose(lse.numpy(), logs, rtol=1e-10, atol=1e-12)


def test_keys_that_nobody_sees_are_known_to_be_none():
    assert VisibleKeys(np.array([[0, 1]], np.int32), 2, causal=True).none
    assert VisibleKeys(np.zeros([1, 2], np.int32), 2, causal=False).none
    assert not VisibleKeys(np.array([[0, 1]], np.int32), 2, causal=False).none
