"""Frozen weights in bfloat16: products and gradients are those of the widened weight, in both orders, in one piece and in
parts; what the operator refuses."""

import numpy as np
import paddle
import pytest
from erniecore_ops.functions import dispatch, exact_bfloat16, frozen_grouped_linear, frozen_linear, grouped_linear


def gradients(function, *arrays):
    tensors = [paddle.to_tensor(a, stop_gradient=False) for a in arrays]
    y = function(*tensors)
    (y * paddle.cos(paddle.arange(y.numel()).astype("float32")).reshape(y.shape)).sum().backward()
    return [y.numpy(), *(t.grad.numpy() for t in tensors)]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("chunk", [1, 40, 1 << 24])
def test_linear(transposed, chunk, monkeypatch):
    monkeypatch.setattr("erniecore_ops.bfloat16_weights.CHUNK", chunk)
    rng = np.random.default_rng(0)
    weight = paddle.to_tensor(rng.standard_normal((13, 7)).astype(np.float32)).astype("bfloat16")
    stored = weight.t().contiguous() if transposed else weight
    x, bias = rng.standard_normal((2, 3, 13)).astype(np.float32), rng.standard_normal(7).astype(np.float32)
    found = gradients(lambda x, b: frozen_linear(x, stored, b, transposed=transposed), x, bias)
    expected = gradients(lambda x, b: paddle.nn.functional.linear(x, weight.astype("float32"), b), x, bias)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("chunk", [1, 200, 1 << 24])
def test_experts(transposed, chunk, monkeypatch):
    monkeypatch.setattr("erniecore_ops.bfloat16_weights.CHUNK", chunk)
    rng = np.random.default_rng(1)
    weight = paddle.to_tensor(rng.standard_normal((5, 12, 7)).astype(np.float32)).astype("bfloat16")
    stored = weight.transpose([0, 2, 1]).contiguous() if transposed else weight
    chosen = paddle.to_tensor(rng.choice([-1, 0, 2, 4], (9, 2)))  # experts 1 and 3 have no rows
    _, routes = dispatch(paddle.ones([9, 12]), chosen, 5)
    x = rng.standard_normal((routes.starts[-1], 12)).astype(np.float32)
    found = gradients(lambda x: frozen_grouped_linear(x, stored, routes, transposed=transposed), x)
    expected = gradients(lambda x: grouped_linear(x, weight.astype("float32"), routes), x)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_weight_that_learns_or_is_float32_is_refused():
    learned = paddle.ones([3, 2], "bfloat16")
    learned.stop_gradient = False
    with pytest.raises(ValueError, match=r"frozen and bfloat16, found .*bfloat16 that learns"):
        frozen_linear(paddle.ones([1, 3]), learned)
    with pytest.raises(ValueError, match=r"frozen and bfloat16, found .*float32"):
        frozen_linear(paddle.ones([1, 3]), paddle.ones([3, 2]))


def test_values_are_narrowed_only_where_none_changes():
    exact = paddle.randn([70, 33]).astype("bfloat16")
    found = exact_bfloat16(exact.astype("float32"))
    assert found.dtype == paddle.bfloat16
    assert found.stop_gradient
    assert bool((found.astype("float32") == exact.astype("float32")).all())
    changed = exact.astype("float32")
    changed[69, 32] = 1.0 + 2.0**-20
    assert exact_bfloat16(changed) is None
    assert exact_bfloat16(exact) is None
