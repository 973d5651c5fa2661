"""Attention by blocks and its gradients against numpy in float64: shapes with tails, groups, masks, strides, threads."""

from functools import cache

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels import library
from ernie_third_party_kernels.attention import reference
from ernie_third_party_kernels.kernel_set import native

SCALE = 0.3
#: B, S, K, query heads, key heads, d: one position, tails of queries, keys and head sizes, more keys than queries and fewer
SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (2, 1, 37, 4, 2, 8),
    (1, 13, 50, 2, 2, 32),
    (2, 33, 33, 3, 1, 10),
    (1, 65, 65, 2, 1, 128),
    (1, 60, 40, 2, 1, 16),
    (2, 130, 130, 8, 2, 64),
    (1, 100, 333, 4, 4, 80),
    (2, 257, 257, 4, 1, 32),
]


def inputs(rng, B, S, K, hq, hk, d):
    """q, k, v and the gradient of the result."""
    return [rng.standard_normal(s) for s in ((B, S, hq, d), (B, K, hk, d), (B, K, hk, d), (B, S, hq, d))]


def packed(rng, B, S):
    """End rows of three samples per row at random places; behind the last one is padding, which ends at its own row."""
    ends = np.tile(np.arange(S, dtype=np.int32), (B, 1))
    for row in ends:
        start = 0
        for stop in np.sort(rng.integers(0, S + 1, 3)):
            row[start:stop], start = stop, stop
    return ends


def run(kernels, arrays, ends=None, keep=None, scale=SCALE):
    """Result and gradients of the kernel on tensors."""
    q, k, v, dy = arrays
    masks = None if ends is None else paddle.to_tensor(ends.reshape(len(ends), 1, -1, 1))
    masks = masks, None if keep is None else paddle.to_tensor(keep.astype("int64"))
    assert kernels["attention_forward"].supports(q, k, v, *masks, scale)
    out, stats = kernels["attention_forward"].run(q, k, v, *masks, scale)
    assert kernels["attention_backward"].supports(q, k, v, out, stats, dy, *masks, scale)
    return [out, *kernels["attention_backward"].run(q, k, v, out, stats, dy, *masks, scale)]


def expected(arrays, seen, scale=SCALE):
    return [reference.forward(*arrays[:3], seen, scale), *reference.backward(*arrays, seen, scale)]


def near(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-5, atol=1e-5 * max(1, np.abs(b).max()))


@cache
def case(shape, mask):
    """Inputs, end rows, kept keys, and what is expected."""
    rng, (B, S, K) = np.random.default_rng(0), shape[:3]
    arrays = inputs(rng, *shape)
    ends = packed(rng, B, K) - np.int32(K - S) if "packed" in mask else None
    keep = rng.random((B, K)) < 0.7 if "keys" in mask else None
    return arrays, ends, keep, expected(arrays, reference.visible(S, K, ends, keep))


@pytest.mark.parametrize("mask", ["causal", "keys", "packed", "packed-keys"])
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_and_gradients(kernels, tensor, shape, mask):
    arrays, ends, keep, wanted = case(shape, mask)
    near(run(kernels, [tensor(x) for x in arrays], ends, keep), wanted)


@pytest.mark.parametrize("mask", ["causal", "packed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_have_the_logarithms_of_their_sums(kernels, tensor, shape, mask):
    """To base 2, and far from all numbers for rows that see nothing: what attention to other keys is added by."""
    arrays, ends, _, _ = case(shape, mask)
    q, k, v, _ = arrays
    (B, S, hq, _), K = q.shape, k.shape[1]
    masks = None if ends is None else paddle.to_tensor(ends.reshape(B, 1, -1, 1))
    stats = kernels["attention_forward"].run(*(tensor(x) for x in (q, k, v)), masks, None, SCALE)[1].numpy()
    seen = np.broadcast_to(reference.visible(S, K, ends, None), (B, S, K))[:, None]
    scores = np.einsum("bshd,bkhd->bhsk", q, k.repeat(hq // k.shape[2], axis=2)) * SCALE
    some = np.broadcast_to(seen.any(axis=-1), stats.shape)
    sums = np.where(seen, np.exp(scores), 0).sum(axis=-1)
    np.testing.assert_allclose(stats[some], np.log2(sums[some]), rtol=1e-5, atol=1e-5)
    assert (np.abs(stats[~some]) >= 1e29).all()


@pytest.mark.parametrize("shape", [(1, 5, 5, 2, 1, 3), (2, 3, 6, 4, 2, 4)])
def test_the_reference_has_the_slopes_of_its_gradients(rng, slope, shape):
    q, k, v, dy = inputs(rng, *shape)
    keep = rng.random(k.shape[:2]) < 0.8
    seen = reference.visible(shape[1], shape[2], None, keep)
    gradients = reference.backward(q, k, v, dy, seen, SCALE)
    slope(lambda q, k, v: reference.forward(q, k, v, seen, SCALE), (q, k, v), gradients, dy)


@pytest.mark.parametrize(("heads", "d"), [(1, 1), (2, 8), (3, 16), (9, 64), (2, 80)])
@pytest.mark.parametrize("lengths", [(1,), (5, 3), (64, 96, 30), (100, 260)])
def test_patches_see_their_frame(kernels, tensor, rng, lengths, heads, d):
    N = sum(lengths)
    qkv, dy = rng.standard_normal((N, 3, heads, d)), rng.standard_normal((N, heads, d))
    q, k, v = (qkv[None, :, i] for i in range(3))
    seen = reference.frames(lengths)
    forward, backward = (kernels[f"patch_attention_{name}"] for name in ("forward", "backward"))
    assert forward.supports(tensor(qkv), lengths, SCALE)
    out, stats = forward.run(tensor(qkv), lengths, SCALE)
    assert backward.supports(tensor(qkv), out, stats, tensor(dy), lengths, SCALE)
    found = backward.run(tensor(qkv), out, stats, tensor(dy), lengths, SCALE)
    gradients = np.stack(reference.backward(q, k, v, dy[None], seen, SCALE), axis=2)[0]
    near([out, found], [reference.forward(q, k, v, seen, SCALE)[0], gradients])


def test_strided_inputs_are_read_in_place(kernels, tensor, rng):
    """Heads of one wide tensor, and keys of a cache that has room for more."""
    B, S, d = 2, 70, 16
    wide, cache = rng.standard_normal((B, S, 8, d)), rng.standard_normal((2, B, 90, 2, d))
    dy = rng.standard_normal((B, S, 4, 2 * d))
    arrays = [wide[:, :, 3:7], cache[0][:, :S], cache[1][:, :S], dy[..., :d]]
    tensors = [tensor(wide)[:, :, 3:7], *(tensor(x)[:, :S] for x in cache), tensor(dy)[..., :d]]
    near(run(kernels, tensors), expected(arrays, reference.visible(S, S, None, None)))


def test_rows_that_see_nothing_are_zero_and_have_no_gradient(kernels, tensor, rng):
    arrays = inputs(rng, 1, 80, 80, 2, 1, 8)
    keep = np.arange(80)[None] >= 70
    found = run(kernels, [tensor(x) for x in arrays], keep=keep)
    assert (found[0].numpy()[:, :70] == 0).all()
    assert (found[1].numpy()[:, :70] == 0).all()
    assert (found[2].numpy()[:, :70] == 0).all()
    assert np.isfinite(found[3].numpy()).all()


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_not_finite_is_not_hidden(kernels, tensor, rng, broken):
    arrays = inputs(rng, 1, 70, 70, 2, 1, 8)
    arrays[0][0, 40, 1] = broken
    out = run(kernels, [tensor(x) for x in arrays])[0].numpy()
    assert np.isnan(out[0, 40, 1]).any()
    assert np.isfinite(out[0, :40]).all()


def test_scores_in_the_hundreds(kernels, tensor, rng):
    """Nothing overflows; a score of 500 is known to 3e-5."""
    arrays = inputs(rng, 1, 130, 130, 2, 2, 32)
    arrays[0] *= 100
    (out, *_), (y, *_) = (
        run(kernels, [tensor(x) for x in arrays]),
        expected(arrays, reference.visible(130, 130, None, None)),
    )
    np.testing.assert_allclose(out.numpy(), y, atol=1e-3)


@pytest.mark.parametrize("isa", library.usable(library.processor_flags()))
def test_the_same_bits_on_any_number_of_threads(tensor, rng, isa, monkeypatch):
    from ernie_third_party_kernels import tensors

    monkeypatch.setattr(tensors, "FEWEST_ELEMENTS", 0)
    arrays, ends = [tensor(x) for x in inputs(rng, 1, 300, 300, 6, 2, 24)], packed(rng, 1, 300)
    first, *others = (run(native.load("attention", lambda n=n: n, isa), arrays, ends) for n in (1, 2, 3, 5))
    for other in others:
        assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(first, other, strict=True))
    qkv, dy, runs = tensor(rng.standard_normal((300, 3, 3, 16))), tensor(rng.standard_normal((300, 3, 16))), []
    for threads in (1, 2, 3, 5):
        loaded = native.load("attention", lambda n=threads: n, isa)
        out, stats = loaded["patch_attention_forward"].run(qkv, (110, 190), SCALE)
        runs.append((out, loaded["patch_attention_backward"].run(qkv, out, stats, dy, (110, 190), SCALE)))
    for other in runs[1:]:
        assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(runs[0], other, strict=True))
