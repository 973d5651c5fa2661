"""Tensors that the backward pass makes again: the same gradients, and they are not kept."""

import numpy as np
import paddle
import pytest
from erniecore_ops import functions as ops
from erniecore_ops import matmul
from paddle.autograd import PyLayer
from paddle.distributed.fleet.utils import recompute


def example(rng):
    x, w, u = (paddle.to_tensor(rng.standard_normal(s).astype("float32")) for s in ((2, 3, 4), (4, 5), (4, 5)))
    for tensor in (x, w, u):
        tensor.stop_gradient = False
    return x, w, u


def gradients(x, w, u, outside):
    """Of two products that read one intermediate tensor, once as it is and once as rows."""
    calls = []

    def make():
        calls.append(None)
        return x * x

    squares = x * x
    with outside(squares, make):
        y = paddle.matmul(squares, w).sum() + (paddle.matmul(squares.reshape([-1, 4]), u) ** 2).sum()
    y.backward()
    found = [t.grad.numpy() for t in (x, w, u)]
    for tensor in (x, w, u):
        tensor.clear_gradient()
    return found, len(calls)


class Nothing:
    """Keeps everything."""

    def __init__(self, *_):
        pass

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def test_the_same_bits_and_made_once_for_all_who_want_it(rng):
    arguments = example(rng)
    expected, _ = gradients(*arguments, Nothing)
    found, calls = gradients(*arguments, ops.rematerialized)
    assert calls == 1
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(a, b)


class Doubled(PyLayer):
    """Keeps its input and nothing else."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.detach() * x.detach()

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensor()
        return 2.0 * x * dy


def test_of_operators_in_python(rng):
    x, w, _ = example(rng)
    y = x * 3.0
    with ops.rematerialized(y, lambda: x * 3.0):
        out = paddle.matmul(Doubled.apply(y.reshape([-1, 4])), w)
    out.sum().backward()
    X, W = x.detach().numpy(), w.detach().numpy()
    np.testing.assert_allclose(x.grad.numpy(), 18 * X * W.sum(1), rtol=1e-5)


def test_inside_of_itself(rng):
    x, w, u = example(rng)
    y = x * 2.0
    with ops.rematerialized(y, lambda: x * 2.0):
        z = y * y
        with ops.rematerialized(z, lambda: y * y):
            out = paddle.matmul(z, w) * paddle.matmul(y, u)
    out.sum().backward()
    X, W, U = (t.detach().numpy().astype("float64") for t in (x, w, u))
    np.testing.assert_allclose(w.grad.numpy(), np.einsum("bsi,bso->io", 4 * X * X, 2 * X @ U), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(u.grad.numpy(), np.einsum("bsi,bso->io", 2 * X, 4 * X * X @ W), rtol=1e-5, atol=1e-5)


def test_inside_a_recomputed_block_it_does_nothing(rng):
    x, w, _ = example(rng)

    def block(x):
        squares = x * x
        with ops.rematerialized(squares, lambda: pytest.fail("kept nothing, so made nothing")):
            return paddle.matmul(squares, w)

    recompute(block, x, use_reentrant=False).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), np.tile((x.detach().numpy() ** 2).sum((0, 1))[:, None], 5), rtol=1e-5)


def test_the_tensor_is_not_kept(rng):
    """Bytes that paddle holds between the passes."""
    x = paddle.ones([256, 1024])
    w = paddle.ones([1024, 1])
    w.stop_gradient = False

    def saved_bytes(outside):
        before = paddle.base.core.host_memory_stat_current_value("Allocated", 0)
        y = x + 1.0
        with outside(y, lambda: x + 1.0):
            out = paddle.matmul(y, w)
        del y
        after = paddle.base.core.host_memory_stat_current_value("Allocated", 0)
        out.sum().backward()
        return after - before

    assert saved_bytes(Nothing) - saved_bytes(ops.rematerialized) >= x.size * 4


def test_nothing_is_held_after_the_backward_pass(rng):
    """Softmax keeps its result, from which the graph can be reached."""
    x, w, _ = example(rng)

    def saved_bytes():
        y = x * 2.0
        with ops.rematerialized(y, lambda: x * 2.0):
            paddle.nn.functional.softmax(paddle.matmul(y, w)).square().sum().backward()
        del y
        return paddle.base.core.host_memory_stat_current_value("Allocated", 0)

    assert saved_bytes() == saved_bytes()


def test_without_gradients_it_is_nothing(rng):
    x, w, _ = example(rng)
    with paddle.no_grad(), ops.rematerialized(x, lambda: pytest.fail("no backward pass")):
        assert paddle.matmul(x, w).shape == [2, 3, 5]


def allocated():
    """Bytes of tensors."""
    return paddle.base.core.host_memory_stat_current_value("Allocated", 0)


def test_what_a_large_layer_saved_goes_in_the_backward_pass_and_not_with_the_graph(rng, monkeypatch):
    monkeypatch.setattr(matmul, "LARGE", 1)
    gate, up, weight = (
        paddle.to_tensor(rng.standard_normal(shape).astype("float32")) for shape in ((4096, 64), (4096, 64), (64, 32))
    )
    weight.stop_gradient = False
    before = allocated()
    left, right = gate * weight[0, 0], up * weight[0, 1]
    active = ops.swiglu(left, right)
    with ops.rematerialized(active, lambda left=left, right=right: ops.swiglu(left, right)):
        loss = ops.linear(active, weight).sum()
    del left, right, active
    kept = allocated() - before
    loss.backward()
    assert kept > 2 * gate.size * 4, "both were kept for the backward pass"
    assert allocated() - before < gate.size * 4, "neither is kept behind it, while the graph is there"
