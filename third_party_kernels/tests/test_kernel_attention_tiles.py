"""Attention whose products are made of bfloat16 parts on matrix tiles, against numpy in float64."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels import tensors
from ernie_third_party_kernels.attention import reference
from ernie_third_party_kernels.kernel_set import native

#: B, S, K, query heads, key heads, d: tails of rows, keys and head sizes; the last one is more than is packed at once
SHAPES = [
    (1, 32, 32, 1, 1, 32),
    (1, 65, 65, 2, 1, 128),
    (2, 130, 130, 8, 2, 64),
    (1, 100, 333, 4, 4, 80),
    (2, 257, 257, 4, 1, 40),
    (1, 120, 60, 2, 1, 72),
    (3, 33, 8200, 6, 6, 32),
]
#: parts -> the largest error of results and gradients over the largest number, at least and at most, of numbers and scores of
#: about 1; a bfloat16 number is within 2^-9 and a sum of two within 2^-17, and an error is a sum of many
BOUNDS = {1: (2.0**-12, 2.0**-5), 2: (2.0**-20, 2.0**-13)}


@pytest.fixture
def load():
    """``load(threads)``: the kernels of attention. Skips where the processor has no such tiles."""
    square = paddle.ones([32, 32])
    if not native.load("matmul", lambda: 1)["parts_matmul"].supports(square, square, False, False, 2, None):
        pytest.skip("this library or processor has no matrix tiles of bfloat16")
    return lambda threads: native.load("attention", lambda: threads)


def inputs(rng, B, S, K, hq, hk, d):
    """q, k, v and the gradient of the result."""
    shapes = (B, S, hq, d), (B, K, hk, d), (B, K, hk, d), (B, S, hq, d)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def run(kernels, arrays, parts, ends=None, keep=None):
    """Result, logarithms of sums, and gradients."""
    q, k, v, dy = map(paddle.to_tensor, arrays)
    masks = None if ends is None else paddle.to_tensor(ends.reshape(len(ends), 1, -1, 1))
    given = masks, None if keep is None else paddle.to_tensor(keep.astype("int64")), q.shape[-1] ** -0.5, parts
    out, stats = kernels["attention_forward"].run(q, k, v, *given)
    found = out, stats, *kernels["attention_backward"].run(q, k, v, out, stats, dy, *given)
    return [x.numpy() for x in found]


def expected(arrays, ends, keep):
    S, K, scale = arrays[0].shape[1], arrays[1].shape[1], arrays[0].shape[-1] ** -0.5
    seen = reference.visible(S, K, ends, keep)
    exact = [x.astype(np.float64) for x in arrays]
    return [reference.forward(*exact[:3], seen, scale), *reference.backward(*exact, seen, scale)]


def errors(found, wanted):
    return [np.abs(a - b).max() / np.abs(b).max() for a, b in zip(found, wanted, strict=True)]


def packed(rng, B, S, K):
    """End rows of samples at random places."""
    ends = np.tile(np.arange(K, dtype=np.int32), (B, 1))
    for row in ends:
        start = 0
        for stop in [*np.sort(rng.integers(0, K + 1, 3)), K]:
            row[start:stop], start = stop, stop
    return ends - np.int32(K - S)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("mask", ["causal", "packed", "keys"])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_rounded_as_much_as_is_said_and_nothing_else(load, rng, shape, mask, parts):
    arrays, (B, S, K) = inputs(rng, *shape), shape[:3]
    ends = packed(rng, B, S, K) if mask == "packed" else None
    keep = rng.random((B, K)) < 0.7 if mask == "keys" else None
    out, _, *gradients = run(load(2), arrays, parts, ends, keep)
    least, most = BOUNDS[parts]
    for error in errors([out, *gradients], expected(arrays, ends, keep)):
        assert least < error < most


@pytest.mark.parametrize("parts", [1, 2])
def test_the_backward_pass_finds_the_weights_of_the_forward_pass(load, rng, parts):
    """With a gradient of ones along one value, dv sums up the weights of a key: all of them together are the number of rows."""
    arrays = inputs(rng, 1, 200, 200, 2, 1, 64)
    arrays[3][:] = 0
    arrays[3][..., 5] = 1
    dv = run(load(2), arrays, parts)[-1]
    assert abs(dv[..., 5].sum() / 400 - 1) < 2.0**-9
    assert not np.delete(dv, 5, axis=-1).any()


@pytest.mark.parametrize("parts", [1, 2])
def test_the_same_bits_on_any_number_of_threads(load, rng, parts, monkeypatch):
    monkeypatch.setattr(tensors, "FEWEST_ELEMENTS", 0)
    arrays, ends = inputs(rng, 2, 300, 300, 6, 2, 40), packed(rng, 2, 300, 300)
    first, *others = (run(load(threads), arrays, parts, ends) for threads in (1, 2, 3, 5))
    for other in others:
        assert all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("parts", [1, 2])
def test_rows_that_see_nothing_are_zero_and_have_no_gradient(load, rng, parts):
    arrays, keep = inputs(rng, 1, 80, 80, 2, 1, 32), np.arange(80)[None] >= 70
    out, stats, dq, dk, dv = run(load(1), arrays, parts, keep=keep)
    for x in (out, dq, dk, dv):
        assert not x[:, :70].any()
    assert (np.abs(stats[..., :70]) >= 1e29).all()
    assert np.isfinite(dv).all()


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_not_finite_is_not_hidden(load, rng, broken, parts):
    arrays = inputs(rng, 1, 70, 70, 2, 1, 32)
    arrays[0][0, 40, 1] = broken
    out = run(load(1), arrays, parts)[0]
    assert np.isnan(out[0, 40, 1]).any()
    assert np.isfinite(out[0, :40]).all()


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("heads", "d"), [(3, 32), (2, 80), (9, 64)])
def test_patches(load, rng, heads, d, parts):
    lengths = (64, 96, 30)
    qkv, dy = (rng.standard_normal((190, *rest, heads, d)).astype(np.float32) for rest in ((3,), ()))
    kernels, given = load(2), (paddle.to_tensor(qkv), lengths, d**-0.5, parts)
    out, stats = kernels["patch_attention_forward"].run(*given)
    found = kernels["patch_attention_backward"].run(given[0], out, stats, paddle.to_tensor(dy), *given[1:])
    q, k, v, dy64 = (x[None].astype(np.float64) for x in (*np.moveaxis(qkv, 1, 0), dy))
    seen, scale = reference.frames(lengths), given[2]
    gradients = np.stack(reference.backward(q, k, v, dy64, seen, scale), axis=2)[0]
    least, most = BOUNDS[parts]
    for error in errors([out.numpy(), found.numpy()], [reference.forward(q, k, v, seen, scale)[0], gradients]):
        assert least < error < most


@pytest.mark.parametrize("shape", [(1, 31, 40, 2, 1, 32), (1, 40, 31, 2, 1, 32), (1, 40, 40, 2, 1, 24)])
def test_what_is_too_small_stays_float32(load, rng, shape):
    arrays = inputs(rng, *shape)
    for mine, other in zip(run(load(1), arrays, 1), run(load(1), arrays, 3), strict=True):
        assert np.array_equal(mine, other)
