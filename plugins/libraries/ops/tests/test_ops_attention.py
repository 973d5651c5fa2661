"""Attention against float64 numpy, whole and block by block, with every kind of mask."""

import sys

import numpy as np
import paddle
import pytest
from erniecore_ops import functions as ops

module, plans = (sys.modules[f"erniecore_ops.{name}"] for name in ("attention", "_attention_plan"))


@pytest.fixture(params=["whole", "blocks", "widened"])
def path(request, monkeypatch):
    """All scores at once; small blocks; small blocks whose masks are not kept at full width."""
    monkeypatch.setattr(module, "SMALL", 1 << 40 if request.param == "whole" else 0)
    monkeypatch.setattr(plans, "BLOCK_ROWS", 16)
    monkeypatch.setattr(plans, "STORED", 0 if request.param == "widened" else 1 << 22)
    plans._plan.cache_clear()
    yield request.param
    plans._plan.cache_clear()


def visible(B, S, K, ends=None, keep=None):
    row, key = np.arange(S)[None, :, None], np.arange(K)[None, None, :]
    visible = np.broadcast_to(key <= row + K - S, (B, S, K))
    if ends is not None:
        visible = visible & (row < ends.reshape(B, 1, K))
    return visible if keep is None else visible & (keep.reshape(B, 1, K) != 0)


def reference(q, k, v, scale=None, **masks):
    (B, S, hq, d), (K, hk) = q.shape, k.shape[1:3]
    k, v = (np.repeat(x, hq // hk, axis=2) for x in (k, v))
    scores = np.einsum("bshd,bkhd->bhsk", q, k) * (d**-0.5 if scale is None else scale)
    keep = visible(B, S, K, **masks)[:, None]
    top = np.where(keep, scores, -np.inf).max(-1, keepdims=True)
    p = np.where(keep, np.exp(np.minimum(scores - np.where(np.isfinite(top), top, 0), 0)), 0)
    p = p / np.maximum(p.sum(-1, keepdims=True), 1e-300)
    return np.einsum("bhsk,bkhd->bshd", p, v)


def inputs(rng, B, S, K, hq, hk, d, scale=1.0):
    return [rng.standard_normal(s) * scale for s in ((B, S, hq, d), (B, K, hk, d), (B, K, hk, d))]


def as_arguments(ends=None, keep=None):
    arguments = {}
    if ends is not None:
        arguments["startend_row_indices"] = paddle.to_tensor(ends.astype("int32").reshape(len(ends), 1, -1, 1))
    if keep is not None:
        arguments["attention_mask"] = paddle.to_tensor(keep.astype("int64"))
    return arguments


def run(arrays, dtype="float32", **kwargs):
    return ops.attention(*(paddle.to_tensor(a.astype(dtype)) for a in arrays), **kwargs).numpy()


def packed(B, S, cuts):
    """Sequences of a row end at ``cuts``; what follows the last cut is padding, which ends at its own index."""
    ends = np.arange(S)
    for start, stop in zip([0, *cuts[:-1]], cuts, strict=True):
        ends[start:stop] = stop
    return np.tile(ends, (B, 1))


@pytest.mark.parametrize("group", [1, 2, 4, 8])
@pytest.mark.parametrize(("B", "S", "K"), [(1, 1, 1), (2, 1, 37), (2, 33, 33), (1, 13, 50), (3, 64, 64)])
def test_matches_the_definition(rng, path, group, B, S, K):
    arrays = inputs(rng, B, S, K, 8, 8 // group, 10)
    np.testing.assert_allclose(run(arrays), reference(*arrays), atol=2e-6)


@pytest.mark.parametrize("cuts", [[50], [7, 20, 50], [1, 2, 3, 47], [16, 32, 48]])
def test_packed_sequences_do_not_see_each_other(rng, path, cuts):
    arrays, ends = inputs(rng, 2, 50, 50, 4, 2, 8), packed(2, 50, cuts)
    y = run(arrays, **as_arguments(ends))
    np.testing.assert_allclose(y, reference(*arrays, ends=ends), atol=2e-6)
    first = [a[:, : cuts[0]] for a in arrays]
    np.testing.assert_allclose(y[:, : cuts[0]], run(first), atol=2e-6)


def test_rows_of_a_batch_may_be_packed_differently(rng, path):
    arrays = inputs(rng, 3, 40, 40, 4, 2, 8)
    ends = np.concatenate([packed(1, 40, c) for c in ([40], [3, 40], [11, 30])])
    np.testing.assert_allclose(run(arrays, **as_arguments(ends)), reference(*arrays, ends=ends), atol=2e-6)


@pytest.mark.parametrize("S", [1, 9, 40])
def test_key_mask(rng, path, S):
    arrays, keep = inputs(rng, 2, S, 40, 4, 2, 8), np.ones((2, 40), bool)
    keep[0, :12], keep[1, 20:33] = False, False
    np.testing.assert_allclose(run(arrays, **as_arguments(keep=keep)), reference(*arrays, keep=keep), atol=2e-6)


def test_both_masks(rng, path):
    arrays, ends, keep = inputs(rng, 2, 40, 40, 4, 1, 8), packed(2, 40, [9, 31]), rng.random((2, 40)) < 0.6
    y = run(arrays, **as_arguments(ends, keep))
    np.testing.assert_allclose(y, reference(*arrays, ends=ends, keep=keep), atol=2e-6)


def test_rows_that_see_nothing_are_zero_with_zero_gradients(rng, path):
    keep = np.ones((1, 40), bool)
    keep[0, :10] = False
    tensors = [paddle.to_tensor(a.astype("float32"), stop_gradient=False) for a in inputs(rng, 1, 40, 40, 2, 2, 8)]
    y = ops.attention(*tensors, **as_arguments(keep=keep))
    (y * y + y).sum().backward()
    assert (y.numpy()[0, :10] == 0).all()
    assert (y.numpy()[0, 10:] != 0).any()
    assert (tensors[0].grad.numpy()[0, :10] == 0).all()
    assert all(np.isfinite(t.grad.numpy()).all() for t in tensors)


def test_nobody_sees_anything(rng, path):
    y = run(inputs(rng, 1, 20, 20, 2, 1, 4), **as_arguments(keep=np.zeros((1, 20), bool)))
    assert (y == 0).all()


@pytest.mark.parametrize("scale", [1e-6, 30.0])
def test_extreme_scores(rng, path, scale):
    arrays = inputs(rng, 1, 33, 33, 2, 1, 8, scale)
    np.testing.assert_allclose(run(arrays), reference(*arrays), rtol=1e-3, atol=1e-4 * scale)


def test_scale_replaces_the_usual_one(rng, path):
    arrays = inputs(rng, 1, 20, 20, 2, 1, 8)
    np.testing.assert_allclose(run(arrays, scale=0.05), reference(*arrays, scale=0.05), atol=2e-6)


@pytest.mark.parametrize(("S", "K", "hk"), [(21, 21, 1), (21, 21, 4), (5, 30, 2), (1, 9, 2)])
def test_gradients(rng, path, check_gradients, S, K, hk):
    check_gradients(ops.attention, *inputs(rng, 2, S, K, 4, hk, 6))


def test_gradients_with_masks(rng, path, check_gradients):
    masks = as_arguments(packed(2, 30, [4, 22]), rng.random((2, 30)) < 0.7)
    check_gradients(lambda q, k, v: ops.attention(q, k, v, **masks), *inputs(rng, 2, 30, 30, 4, 2, 6))


def test_gradient_only_where_it_is_wanted(rng, path):
    q, k, v = (paddle.to_tensor(a.astype("float32")) for a in inputs(rng, 1, 20, 20, 2, 1, 4))
    k.stop_gradient = False
    ops.attention(q, k, v).sum().backward()
    assert k.grad is not None
    assert q.grad is None
    assert v.grad is None


def test_same_bits(rng, path, check_same_bits):
    check_same_bits(ops.attention, *(a.astype("float32") for a in inputs(rng, 2, 40, 40, 4, 2, 8)))


def test_threads_do_not_change_bits(rng, path, two_threads):
    arrays = inputs(rng, 2, 70, 70, 4, 2, 8)
    on_two = run(arrays)
    paddle.base.core.set_num_threads(1)
    assert np.array_equal(on_two, run(arrays))


def test_an_old_plan_is_not_used_for_another_mask(rng, path):
    arrays = inputs(rng, 1, 40, 40, 2, 1, 4)
    for cuts in ([40], [10, 40], [20, 40], [40]):
        ends = packed(1, 40, cuts)
        np.testing.assert_allclose(run(arrays, **as_arguments(ends)), reference(*arrays, ends=ends), atol=2e-6)


def test_end_rows_need_one_entry_per_key(rng):
    with pytest.raises(ValueError, match="one entry per key"):
        run(inputs(rng, 1, 3, 5, 2, 1, 4), startend_row_indices=paddle.zeros([1, 1, 3, 1], "int32"))


def test_rows_out_of_the_middle_are_those_of_the_whole(rng, path):
    q, k, v = inputs(rng, 2, 40, 40, 4, 2, 8)
    ends = packed(2, 40, [7, 25, 40])
    whole = reference(q, k, v, ends=ends)[:, 20:30]
    some = run((q[:, 20:30], k[:, :30], v[:, :30]), **as_arguments(ends[:, :30] - 20))
    np.testing.assert_allclose(some, whole, atol=2e-6)


def test_query_heads_must_divide(rng):
    with pytest.raises(ValueError, match="6 query heads"):
        run(inputs(rng, 1, 3, 3, 6, 4, 4))


@pytest.mark.parametrize("S", [1, 20])
def test_inputs_are_left_alone(rng, path, S):
    arrays = inputs(rng, 1, S, S, 4, 1, 8)
    tensors = [paddle.to_tensor(a, stop_gradient=False) for a in arrays]
    y = ops.attention(*tensors)
    before = y.numpy().copy()
    (y * y).sum().backward()
    assert np.array_equal(y.numpy(), before)
    assert all(np.array_equal(t.numpy(), a) for t, a in zip(tensors, arrays, strict=True))


@pytest.mark.parametrize(("B", "S", "h", "d"), [(1, 1, 1, 4), (2, 7, 2, 8), (3, 40, 2, 10)])
def test_every_query_attends_to_every_key(path, B, S, h, d):
    """Result and gradients of ``full_attention``; also where some inputs are frozen, and without gradients."""
    rng = np.random.default_rng(B)
    arrays = inputs(rng, B, S, S, h, h, d)
    q, k, v = tensors = [paddle.to_tensor(x, stop_gradient=False) for x in arrays]
    weights = paddle.to_tensor(rng.standard_normal((B, S, h, d)))
    scores = paddle.einsum("bshd,bkhd->bhsk", q, k) * d**-0.5
    expected = paddle.einsum("bhsk,bkhd->bshd", paddle.nn.functional.softmax(scores), v)
    wanted = paddle.grad((expected * weights).sum(), tensors)
    found = ops.full_attention(q, k, v)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-12)
    for mine, other in zip(paddle.grad((found * weights).sum(), tensors), wanted, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), atol=1e-12)
    with paddle.no_grad():
        np.testing.assert_allclose(ops.full_attention(q, k, v).numpy(), expected.numpy(), atol=1e-12)
    (alone,) = paddle.grad((ops.full_attention(q.detach(), k, v.detach()) * weights).sum(), [k])
    np.testing.assert_allclose(alone.numpy(), wanted[1].numpy(), atol=1e-12)
