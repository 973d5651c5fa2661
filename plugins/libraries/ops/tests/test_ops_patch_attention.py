"""Attention of patches against float64 numpy: frames of several sizes, with kernels and without."""

import gc

import numpy as np
import paddle
import pytest
from erniecore_ops import functions as ops
from erniecore_ops.patch_attention import patch_attention_backward, patch_attention_forward
from paddle.base import core

LENGTHS = [(1,), (5, 3), (4, 4, 9), (70, 130, 130)]


def tables(N, d, dtype="float32"):
    places = paddle.stack([paddle.arange(N) // 7, paddle.arange(N) % 7], axis=-1)
    return [table.astype(dtype) for table in ops.rope_tables_2d(places.unsqueeze(0), d, 100.0)]


def composed(qkv, cos, sin, lengths, d):
    """From operators that are tested by themselves, frame by frame."""
    q, k, v = qkv.reshape([1, qkv.shape[0], 3, -1, d]).unbind(axis=2)
    q, k = (ops.apply_rope(x.contiguous(), cos, sin, halves=True) for x in (q, k))
    outs, start = [], 0
    for length in lengths:
        rows = slice(start, start + length)
        outs.append(ops.full_attention(q[:, rows], k[:, rows], v[:, rows])[0])
        start += length
    return paddle.concat(outs).reshape([qkv.shape[0], -1])


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 2e-5), ("float64", 1e-11)])
def test_as_attention_of_each_frame(rng, lengths, heads, dtype, bound):
    N, d = sum(lengths), 16
    qkv = paddle.to_tensor(rng.standard_normal((N, 3 * heads * d)).astype(dtype), stop_gradient=False)
    dy = paddle.to_tensor(rng.standard_normal((N, heads * d)).astype(dtype))
    both = []
    for function in (ops.patch_attention, composed):
        y = function(qkv, *tables(N, d), lengths, d)
        both.append((y, *paddle.grad([y], [qkv], [dy])))
    for found, wanted in zip(*both, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=bound, atol=bound * 5)
    with paddle.no_grad():
        assert np.array_equal(ops.patch_attention(qkv, *tables(N, d), lengths, d).numpy(), both[0][0].numpy())


def test_functions_that_kernels_replace(rng):
    """As they are, with what the attention in use remembers: the gradient is that of finite differences."""
    lengths, scale = (6, 6, 3), 0.4
    qkv, dy = rng.standard_normal((15, 3, 2, 4)), rng.standard_normal((15, 2, 4))

    def run(array):
        return patch_attention_forward.__wrapped__(paddle.to_tensor(array), lengths, scale)

    out, stats = run(qkv)
    found = patch_attention_backward.__wrapped__(
        paddle.to_tensor(qkv), out, stats, paddle.to_tensor(dy), lengths, scale
    )
    direction = rng.standard_normal(qkv.shape)
    moved = [float((run(qkv + sign * 1e-6 * direction)[0].numpy() * dy).sum()) for sign in (1, -1)]
    assert float((found.numpy() * direction).sum()) == pytest.approx((moved[0] - moved[1]) / 2e-6, rel=1e-6)


def test_a_frame_does_not_see_others(rng):
    qkv, lengths = rng.standard_normal((40, 48)).astype("float32"), (15, 25)
    first = ops.patch_attention(paddle.to_tensor(qkv), *tables(40, 16), lengths, 16).numpy()
    qkv[15:] += 1
    second = ops.patch_attention(paddle.to_tensor(qkv), *tables(40, 16), lengths, 16).numpy()
    assert np.array_equal(first[:15], second[:15])
    assert not np.allclose(first[15:], second[15:])


def test_lengths_of_other_patches_are_refused():
    with pytest.raises(ValueError, match="9 patches together, but 10 patches"):
        ops.patch_attention(paddle.zeros([10, 48]), *tables(10, 16), (4, 5), 16)


def test_same_bits(rng, check_same_bits):
    cos, sin = tables(90, 16)
    qkv = rng.standard_normal((90, 96)).astype("float32")
    check_same_bits(lambda x: ops.patch_attention(x, cos, sin, (30, 60), 16), qkv)


def test_memory_grows_with_the_patches(rng):
    """No number per pair of patches is kept."""
    N, d = 512, 16
    cos, sin = tables(N, d)
    qkv = paddle.to_tensor(rng.standard_normal((N, 3 * d)).astype("float32"), stop_gradient=False)
    gc.collect()
    before = core.host_memory_stat_current_value("Allocated", 0)
    y = ops.patch_attention(qkv, cos, sin, (N,), d)
    kept = core.host_memory_stat_current_value("Allocated", 0) - before
    assert y.shape == [N, d]
    assert kept <= 4 * N * (3 * d + 2 * d + 2)
