"""Linear layers and the precision of their products."""

import numpy as np
import paddle
import pytest
from erniecore_ops import functions as ops
from erniecore_ops import kernels as operators
from erniecore_ops import matmul as module
from paddle import nn


@pytest.fixture
def precision():
    """Sets the precision of products until the end of the test."""
    yield module.set_matmul_precision
    module.set_matmul_precision("highest")


@pytest.fixture
def exact_parts(monkeypatch):
    """No kernel: products of any precision are float32."""
    monkeypatch.setattr(operators, "_in_use", {})


@pytest.fixture
def layers(rng):
    """Paddle's layer and ours, with the same weights; ours has a name of its own for them."""

    def make(num_in, num_out, bias):
        paddle.seed(0)
        theirs, ours = (kind(num_in, num_out, bias_attr=None if bias else False) for kind in (nn.Linear, module.Linear))
        ours.set_state_dict(theirs.state_dict())
        return theirs, ours

    return make


def gradients(layer, x, frozen=()):
    """Output, then gradients of the input and of what layer learns."""
    x = paddle.to_tensor(x, stop_gradient="x" in frozen)
    for name, parameter in layer.named_parameters():
        parameter.stop_gradient = name in frozen
    y = layer(x)
    (y * y).sum().backward()
    return [y, x.grad, *(parameter.grad for _, parameter in layer.named_parameters())]


@pytest.mark.parametrize("frozen", [(), ("weight",), ("x",), ("x", "weight"), ("weight", "bias")])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("exact_parts")
def test_it_computes_what_paddle_does(rng, layers, precision, bias, frozen):
    if set(frozen) >= {"x", "weight"} and not bias:
        pytest.skip("nothing learns")
    precision("high")
    x = rng.standard_normal((2, 5, 33)).astype(np.float32)
    theirs, ours = (gradients(layer, x, frozen) for layer in layers(33, 9, bias))
    for expected, found in zip(theirs, ours, strict=True):
        assert (expected is None) == (found is None)
        if expected is not None:
            np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=2e-5, atol=2e-5)


def test_highest_is_paddles_own_product(rng, layers):
    x = rng.standard_normal((2, 50, 64)).astype(np.float32)
    for bias in (False, True):
        theirs, ours = (gradients(layer, x) for layer in layers(64, 96, bias))
        for a, b in zip(theirs, ours, strict=True):
            if a.ndim > 1:
                assert np.array_equal(a.numpy(), b.numpy())
            else:  # rows are added up in another order
                np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "bound"), [("high", 2e-5), ("medium", 5e-3)])
def test_what_is_rounded(rng, layers, precision, name, bound):
    """Whether or not a kernel rounds, the result is within what the precision allows."""
    precision(name)
    x = rng.standard_normal((64, 128)).astype(np.float32)
    weight = layers(128, 96, False)[1].weight
    found = ops.linear(paddle.to_tensor(x), weight).numpy()
    size = np.abs(x) @ np.abs(weight.numpy())
    assert (np.abs(found - x.astype(np.float64) @ weight.numpy()) <= bound * size).all()


def test_other_dtypes_are_left_alone(rng, precision):
    precision("medium")
    x, w = (paddle.to_tensor(rng.standard_normal(shape)) for shape in ((64, 64), (64, 64)))
    assert ops.linear(x, w).dtype == paddle.float64
    np.testing.assert_allclose(ops.linear(x, w).numpy(), x.numpy() @ w.numpy(), rtol=1e-12)


def test_same_bits_when_the_input_is_made_anew(rng, layers, precision):
    precision("high")
    weight = rng.standard_normal((64, 64)).astype(np.float32)
    results = []
    for again in (False, True):
        _, layer = layers(64, 64, True)
        x = paddle.to_tensor(weight, stop_gradient=False)
        doubled, made = x * 2.0, []
        if again:
            with ops.rematerialized(doubled, lambda made=made, x=x: made.append(1) or x * 2.0):
                y = layer(doubled)
        else:
            y = layer(doubled)
        y.sum().backward()
        assert len(made) == again
        results.append([y.numpy(), x.grad.numpy(), layer.weight.grad.numpy()])
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.usefixtures("exact_parts")
def test_it_says_where_nothing_is_faster(precision):
    assert precision("highest") == ""
    assert "with high" in precision("high")
    assert module.matmul_precision() == "high"
    with pytest.raises(ValueError, match="highest, high, medium"):
        precision("low")


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("factors", ["one", "many"])
def test_head_and_loss(rng, precision, transposed, factors):
    """Loss and gradients of the head in the lower precision, near those in the highest."""
    hidden, head = rng.standard_normal((80, 64)), rng.standard_normal((70, 64) if transposed else (64, 70)) / 8
    labels, weights = paddle.to_tensor(rng.integers(0, 70, 80)), rng.random(80)
    found = []
    for name in ("highest", "high"):
        precision(name)
        h, w = (paddle.to_tensor(a.astype(np.float32), stop_gradient=False) for a in (hidden, head))
        loss = ops.linear_cross_entropy(h, w, labels, transposed=transposed, chunk=40)
        scale = paddle.to_tensor(weights.astype(np.float32)) if factors == "many" else 0.5
        (loss * scale).sum().backward()
        found.append([loss.numpy(), h.grad.numpy(), w.grad.numpy()])
    for expected, near in zip(*found, strict=True):
        np.testing.assert_allclose(near, expected, rtol=1e-4, atol=1e-4)


def test_plain_linear_layers_are_those_of_no_derived_class():
    class Other(nn.Linear):
        pass

    assert ops.is_plain_linear(nn.Linear(2, 2))
    assert ops.is_plain_linear(module.Linear(2, 2))
    assert not ops.is_plain_linear(Other(2, 2))


@pytest.mark.parametrize("name", list(module.PARTS))
def test_attention_asks_its_kernels_for_the_precision(rng, precision, monkeypatch, name):
    """Every kind of it, forward and backward: the kernel is told how many parts it may make."""
    from erniecore_ops import attention, patch_attention
    from erniecore_ops.partial_attention import VisibleKeys

    told = []

    class Spy:
        def __init__(self, function):
            self.run = lambda *given: (told.append(given[-1]), function(*given))[1]
            self.supports = lambda *given: True

    functions = attention.attention_forward, attention.attention_backward
    functions += patch_attention.patch_attention_forward, patch_attention.patch_attention_backward
    monkeypatch.setattr(operators, "_in_use", {f.__name__: Spy(f.__wrapped__) for f in functions})
    precision(name)
    q, k, v = (paddle.to_tensor(rng.standard_normal([1, 40, 2, 32]), "float32", stop_gradient=False) for _ in range(3))
    ops.attention(q, k, v).sum().backward()
    with paddle.no_grad():
        ops.attention(q, k, v)
    ops.full_attention(q, k, v).sum().backward()
    qkv = paddle.to_tensor(rng.standard_normal([40, 192]), "float32", stop_gradient=False)
    ops.patch_attention(qkv, *paddle.ones([2, 1, 40, 16]), (40,), 32).sum().backward()
    visible = VisibleKeys(np.full([1, 40], 40, np.int32), 40, causal=False)
    fixed = [x.detach() for x in (q, k, v)]
    lse = paddle.zeros([1, 2, 40])
    monkeypatch.setitem(operators._in_use, "attention_forward", Spy(lambda *given: (fixed[0], lse)))
    ops.partial_attention(*fixed, visible, 0.5)
    ops.partial_attention_backward(*fixed, fixed[0], lse, fixed[0], visible, 0.5)
    assert told == [module.PARTS[name]] * len(told)
    assert len(told) == 11
