"""Head and loss in one against float64 numpy."""

import numpy as np
import paddle
import pytest
from erniecore_ops import functions as ops
from erniecore_ops import linear_cross_entropy as module

from erniecore.types.samples import IGNORE


def reference(hidden, weight, labels, bias=None, transposed=False):
    logits = hidden @ (weight.T if transposed else weight) + (0 if bias is None else bias)
    top = logits.max(-1, keepdims=True)
    total = np.log(np.exp(logits - top).sum(-1)) + top[:, 0]
    return np.where(labels == IGNORE, 0, total - logits[np.arange(len(labels)), np.maximum(labels, 0)])


def example(rng, T=37, H=8, V=19, share=0.7, transposed=False):
    hidden, bias = rng.standard_normal((T, H)), rng.standard_normal(V)
    weight = rng.standard_normal((V, H) if transposed else (H, V))
    labels = np.where(rng.random(T) < share, rng.integers(0, V, T), IGNORE)
    return hidden, weight, bias, labels


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("T", "share"), [(1, 1.0), (37, 0.7), (64, 1.0)])
@pytest.mark.parametrize("chunk", [0, 1, 16, 1000])
def test_matches_the_definition(rng, transposed, with_bias, T, share, chunk):
    hidden, weight, bias, labels = example(rng, T=T, share=share, transposed=transposed)
    h, w, b = (paddle.to_tensor(a.astype("float32")) for a in (hidden, weight, bias))
    y = ops.linear_cross_entropy(
        h, w, paddle.to_tensor(labels), transposed=transposed, bias=b if with_bias else None, chunk=chunk
    )
    assert y.dtype == paddle.float32
    expected = reference(hidden, weight, labels, bias if with_bias else None, transposed)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("share", [0.6, 1.0])
def test_gradients_with_a_factor_per_position(rng, check_gradients, transposed, share):
    hidden, weight, bias, labels = example(rng, T=23, share=share, transposed=transposed)
    targets = paddle.to_tensor(labels)

    def loss(h, w, b):
        return ops.linear_cross_entropy(h, w, targets, transposed=transposed, bias=b, chunk=5)

    check_gradients(loss, hidden, weight, bias)


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_a_mean(rng, check_gradients, transposed):
    hidden, weight, bias, labels = example(rng, T=23, transposed=transposed)
    targets = paddle.to_tensor(labels)

    def loss(h, w, b):
        return ops.linear_cross_entropy(h, w, targets, transposed=transposed, bias=b, chunk=5).sum() / 7.0

    check_gradients(loss, hidden, weight, bias)


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_gradient_only_where_it_is_wanted(rng, frozen):
    hidden, weight, _, labels = example(rng)
    tensors = {"hidden": paddle.to_tensor(hidden), "weight": paddle.to_tensor(weight)}
    other = "weight" if frozen == "hidden" else "hidden"
    tensors[other].stop_gradient = False
    loss = ops.linear_cross_entropy(*tensors.values(), paddle.to_tensor(labels), transposed=False)
    loss.sum().backward()
    assert tensors[frozen].grad is None
    assert np.abs(tensors[other].grad.numpy()).sum() > 0


def test_no_learned_position_gives_zero_loss_and_gradients(rng):
    hidden, weight, _, _ = example(rng)
    h, w = (paddle.to_tensor(a, stop_gradient=False) for a in (hidden, weight))
    loss = ops.linear_cross_entropy(h, w, paddle.full([37], IGNORE, "int64"), transposed=False)
    loss.sum().backward()
    assert (loss.numpy() == 0).all()
    assert (h.grad.numpy() == 0).all()
    assert (w.grad.numpy() == 0).all()


@pytest.mark.parametrize("size", [50.0, 1e4])
def test_improbable_labels_have_an_exact_finite_loss(rng, size):
    hidden, weight, _, labels = example(rng, share=1.0)
    h, w = (paddle.to_tensor((a).astype("float32"), stop_gradient=False) for a in (hidden * size, weight))
    loss = ops.linear_cross_entropy(h, w, paddle.to_tensor(labels), transposed=False)
    loss.sum().backward()
    np.testing.assert_allclose(loss.numpy(), reference(hidden * size, weight, labels), rtol=1e-4, atol=1e-4 * size)
    assert loss.numpy().max() > 80
    assert np.isfinite(h.grad.numpy()).all()
    assert np.isfinite(w.grad.numpy()).all()


def test_backward_twice_gives_the_same_gradient(rng):
    hidden, weight, _, labels = example(rng)
    h, w = (paddle.to_tensor(a, stop_gradient=False) for a in (hidden, weight))
    loss = ops.linear_cross_entropy(h, w, paddle.to_tensor(labels), transposed=False).sum()
    first = paddle.grad(loss, [h, w], retain_graph=True)
    kept = [g.numpy().copy() for g in first]
    second = paddle.grad(loss * 2.0, [h, w])
    for a, b, c in zip(first, kept, second, strict=True):
        assert np.array_equal(a.numpy(), b)
        np.testing.assert_allclose(c.numpy(), 2 * b, rtol=1e-12, atol=1e-12)


def test_evaluation_makes_no_gradients(rng):
    hidden, weight, _, labels = example(rng)
    h, w = (paddle.to_tensor(a, stop_gradient=False) for a in (hidden, weight))
    with paddle.no_grad():
        loss = ops.linear_cross_entropy(h, w, paddle.to_tensor(labels), transposed=False)
    assert loss.stop_gradient
    np.testing.assert_allclose(loss.numpy(), reference(hidden, weight, labels), rtol=1e-9)


@pytest.mark.parametrize("bad", [-1, 19, 10**6])
def test_foreign_labels_are_refused(rng, bad):
    hidden, weight, _, labels = example(rng)
    labels[3] = bad
    with pytest.raises(ValueError, match="labels must be"):
        ops.linear_cross_entropy(
            paddle.to_tensor(hidden), paddle.to_tensor(weight), paddle.to_tensor(labels), transposed=False
        )


def test_same_bits(rng, check_same_bits):
    hidden, weight, bias, labels = example(rng, T=300, V=600)
    targets = paddle.to_tensor(labels)
    check_same_bits(
        lambda h, w, b: ops.linear_cross_entropy(h, w, targets, transposed=False, bias=b, chunk=64),
        *(a.astype("float32") for a in (hidden, weight, bias)),
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["hidden", "weight"])
def test_what_is_not_finite_shows_in_the_loss(bad, where):
    """Paddle's softmax makes a uniform distribution of such a row: a ruined model would look merely untrained."""
    hidden, weight = paddle.ones([3, 4]), paddle.ones([7, 4])
    (hidden if where == "hidden" else weight)[1, 2] = bad
    loss = ops.linear_cross_entropy(hidden, weight, paddle.arange(3), transposed=True)
    assert np.isnan(loss.numpy()).tolist() == ([False, True, False] if where == "hidden" else [True] * 3)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_frozen_bfloat16_head_is_used_as_it_is(rng, transposed, monkeypatch):
    hidden, weight, bias, labels = example(rng, T=23, transposed=transposed)
    kept = paddle.to_tensor(weight.astype("float32")).astype("bfloat16")
    rows, multiply = [], module.bfloat16_matmul
    monkeypatch.setattr(module, "bfloat16_matmul", lambda x, *rest: rows.append(len(x)) or multiply(x, *rest))
    found, expected = [], []
    for results, w in ((found, kept), (expected, kept.astype("float32"))):
        h, b = (paddle.to_tensor(a.astype("float32"), stop_gradient=False) for a in (hidden, bias))
        y = ops.linear_cross_entropy(h, w, paddle.to_tensor(labels), transposed=transposed, bias=b, chunk=10)
        (y * paddle.arange(23).astype("float32")).sum().backward()
        results += [y.numpy(), h.grad.numpy(), b.grad.numpy()]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert max(rows) == 10  # pieces of the positions; the float32 copy takes no part
