"""Kernels against numpy in float64, over shapes with and without tails."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels.bias import reference as bias
from ernie_third_party_kernels.decode_attention import reference as attention
from ernie_third_party_kernels.decode_experts import reference as experts
from ernie_third_party_kernels.gelu import reference as gelu
from ernie_third_party_kernels.layer_norm import reference as layer_norm
from ernie_third_party_kernels.rms_norm import reference as rms
from ernie_third_party_kernels.rope import reference as rope
from ernie_third_party_kernels.softmax import reference as softmax
from ernie_third_party_kernels.swiglu import reference as swiglu

ROWS = [(1, 1), (1, 16), (3, 7), (5, 64), (2, 63), (7, 129), (4, 257), (33, 96)]


def near(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("shape", ROWS)
def test_rms_norm(kernels, tensor, rng, slope, shape):
    x, w, dy = rng.standard_normal(shape), rng.standard_normal(shape[1]), rng.standard_normal(shape)
    y, inverse = rms.forward(x, w, 1e-5)
    dx, dw = rms.backward(x, w, inverse, dy)
    slope(lambda x, w: rms.forward(x, w, 1e-5)[0], (x, w), (dx, dw), dy)
    found, kept = kernels["rms_norm_forward"].run(tensor(x), tensor(w), 1e-5)
    near(found, y)
    near(kept, inverse)
    found_dx, found_dw = kernels["rms_norm_backward"].run(tensor(x), tensor(w), kept, tensor(dy), (True, True))
    near(found_dx, dx)
    near(found_dw, dw)


@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_rms_norm_makes_only_the_gradients_that_are_wanted(kernels, tensor, rng, wanted):
    x, w = tensor(rng.standard_normal((3, 20))), tensor(rng.standard_normal(20))
    _, inverse = kernels["rms_norm_forward"].run(x, w, 1e-5)
    found = kernels["rms_norm_backward"].run(x, w, inverse, x, wanted)
    assert tuple(dx is not None for dx in found) == wanted


@pytest.mark.parametrize("shape", [*ROWS, (70, 384)])
def test_layer_norm(kernels, tensor, rng, slope, shape):
    x, w, b, dy = (rng.standard_normal(s) for s in (shape, shape[1:], shape[1:], shape))
    y, mean, inverse = layer_norm.forward(x, w, b, 1e-5)
    gradients = layer_norm.backward(x, w, mean, inverse, dy)
    if shape[1] > 1:  # of one number there is nothing but rounding
        slope(lambda x, w, b: layer_norm.forward(x, w, b, 1e-5)[0], (x, w, b), gradients, dy)
    found, *kept = kernels["layer_norm_forward"].run(tensor(x), tensor(w), tensor(b), 1e-5)
    near(found, y)
    near(kept[0], mean)
    near(kept[1], inverse, 1e-4)
    exact = tensor(mean), tensor(inverse)
    made = kernels["layer_norm_backward"].run(tensor(x), tensor(w), *exact, tensor(dy), (True, True))
    for dx, expected in zip(made, gradients, strict=True):
        near(dx, expected, 2e-5)


@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_layer_norm_makes_only_the_gradients_that_are_wanted(kernels, tensor, rng, wanted):
    x, w = tensor(rng.standard_normal((3, 20))), tensor(rng.standard_normal(20))
    _, *kept = kernels["layer_norm_forward"].run(x, w, w, 1e-5)
    found = kernels["layer_norm_backward"].run(x, w, *kept, x, wanted)
    assert [dx is not None for dx in found] == [wanted[0], wanted[1], wanted[1]]


@pytest.mark.parametrize("variant", ["erf", "tanh", "quick"])
@pytest.mark.parametrize("shape", ROWS)
def test_gelu(kernels, tensor, rng, slope, shape, variant):
    x, dy = rng.standard_normal(shape) * 3, rng.standard_normal(shape)
    dx = gelu.backward(x, dy, variant)
    slope(lambda x: gelu.forward(x, variant), (x,), (dx,), dy)
    near(kernels["gelu_forward"].run(tensor(x), variant), gelu.forward(x, variant), 1e-6)
    near(kernels["gelu_backward"].run(tensor(x), tensor(dy), variant), dx, 1e-6)


@pytest.mark.parametrize("variant", ["erf", "tanh", "quick"])
def test_gelu_of_extreme_values(kernels, tensor, variant):
    x = np.array([-1e15, -1000.0, -30.0, -6.0, 0.0, 6.0, 30.0, 1000.0, 1e15, np.nan] * 2)
    found = kernels["gelu_forward"].run(tensor(x), variant).numpy()
    slopes = kernels["gelu_backward"].run(tensor(x), tensor(np.ones_like(x)), variant).numpy()
    expected = np.array([0, 0, 0, gelu.forward(np.array([-6.0]), variant)[0], 0, 6, 30, 1000, 1e15, np.nan] * 2)
    np.testing.assert_allclose(found, expected, rtol=5e-4, atol=1e-10)
    np.testing.assert_allclose(slopes[[0, 1, 2, 4, 6, 7, 8]], [0, 0, 0, 0.5, 1, 1, 1], atol=1e-7)
    assert np.isnan(slopes[9])


def test_the_tail_of_gelu_is_relative(kernels, tensor):
    """Where the result is small, it is as exact as where it is large."""
    x = np.linspace(-8, -2, 200)
    found = kernels["gelu_forward"].run(tensor(x), "erf").numpy()
    np.testing.assert_allclose(found, gelu.forward(x.astype(np.float32).astype(float), "erf"), rtol=5e-6)


@pytest.mark.parametrize("shape", [*ROWS, (900, 40)])
def test_bias(kernels, tensor, rng, shape):
    y, b = rng.standard_normal(shape), rng.standard_normal(shape[1])
    given = tensor(y)
    near(kernels["sum_rows"].run(given), bias.backward(y))
    kernels["add_bias_"].run(given, tensor(b))
    near(given, bias.forward(y, b))


@pytest.mark.parametrize("shape", ROWS)
def test_swiglu(kernels, tensor, rng, slope, shape):
    gate, up, dy = (rng.standard_normal(shape) * 3 for _ in range(3))
    d_gate, d_up = swiglu.backward(gate, up, dy)
    slope(swiglu.forward, (gate, up), (d_gate, d_up), dy)
    near(kernels["swiglu_forward"].run(tensor(gate), tensor(up)), swiglu.forward(gate, up))
    factor = rng.standard_normal((shape[0], 1))
    near(kernels["swiglu_forward"].run(tensor(gate), tensor(up), tensor(factor)), swiglu.forward(gate, up) * factor)
    for found, expected in zip(
        kernels["swiglu_backward"].run(tensor(gate), tensor(up), tensor(dy)), (d_gate, d_up), strict=True
    ):
        near(found, expected)


def test_swiglu_of_extreme_gates(kernels, tensor):
    gate = np.array([[-1e30, -1000.0, -100.0, -80.0, -10.0, 0.0, 10.0, 100.0, 1e30, np.nan] * 2])
    found = kernels["swiglu_forward"].run(tensor(gate), tensor(np.ones_like(gate))).numpy()
    expected = np.array([[0, 0, 0, 0, -10 / (1 + np.exp(10.0)), 0, 10 / (1 + np.exp(-10.0)), 100, 1e30, np.nan] * 2])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 5, 3, 6), (2, 3, 8, 32), (1, 4, 2, 34)])
@pytest.mark.parametrize("one_table", [False, True])
@pytest.mark.parametrize("halves", [False, True])
def test_rope(kernels, tensor, rng, shape, sign, one_table, halves):
    B, S, _, d = shape
    x, angle = rng.standard_normal(shape), rng.standard_normal((1 if one_table else B, S, d // 2))
    found = kernels["rotate"].run(tensor(x), tensor(np.cos(angle)), tensor(np.sin(angle)), sign, halves)
    near(found, rope.rotate(x, np.cos(angle), np.sin(angle), sign, halves))


@pytest.mark.parametrize("halves", [False, True])
def test_rope_of_some_heads(kernels, tensor, rng, halves):
    x, angle = rng.standard_normal((1, 5, 6, 8)), rng.standard_normal((1, 5, 4))
    for heads in (0, 4, 6):
        found = kernels["rotate"].run(tensor(x), tensor(np.cos(angle)), tensor(np.sin(angle)), 1.0, halves, heads)
        near(found, rope.rotate(x, np.cos(angle), np.sin(angle), 1.0, halves, heads))


@pytest.mark.parametrize("halves", [False, True])
def test_the_gradient_of_a_rotation_is_the_rotation_backwards(kernels, tensor, rng, slope, halves):
    x, dy, angle = rng.standard_normal((2, 3, 2, 8)), rng.standard_normal((2, 3, 2, 8)), rng.standard_normal((2, 3, 4))
    cos, sin = np.cos(angle), np.sin(angle)
    back = rope.rotate(dy, cos, sin, -1.0, halves)
    slope(lambda x: rope.rotate(x, cos, sin, 1.0, halves), (x,), (back,), dy)
    tables = tensor(cos), tensor(sin)
    near(kernels["rotate"].run(tensor(dy), *tables, -1.0, halves), back)
    near(kernels["rotate"].run(kernels["rotate"].run(tensor(x), *tables, 1.0, halves), *tables, -1.0, halves), x)


@pytest.mark.parametrize("shape", ROWS)
def test_softmax(kernels, tensor, rng, shape):
    scores = rng.standard_normal(shape) * 5
    near(kernels["softmax_rows_"].run(tensor(scores)), softmax.softmax(scores))


@pytest.mark.parametrize("masked", [1, 17, 40])
def test_softmax_with_a_mask(kernels, tensor, rng, masked):
    scores, alive = rng.standard_normal((6, 40)), np.array([[1], [1], [0], [1], [1], [0]])
    hidden = np.where(rng.random((6, masked)) < 0.5, 0.0, -1e30)
    hidden[:, -1] = 0
    found = kernels["softmax_rows_"].run(tensor(scores), tensor(hidden), tensor(alive))
    near(found, softmax.softmax(scores, hidden, alive))
    assert (found.numpy()[2] == 0).all()


def test_softmax_writes_in_place_and_keeps_nan(kernels, tensor):
    scores = tensor([[0.0] * 20, [0.0] * 19 + [np.nan], [500.0] + [-500.0] * 19])
    kernels["softmax_rows_"].run(scores)
    rows = scores.numpy()
    np.testing.assert_allclose(rows[0], 0.05, rtol=1e-6)
    assert np.isnan(rows[1]).all()
    assert rows[2].tolist() == [1.0] + [0.0] * 19


@pytest.mark.parametrize(
    ("B", "K", "hq", "hk", "d"), [(1, 1, 1, 1, 1), (2, 9, 4, 2, 8), (3, 40, 8, 2, 33), (1, 200, 6, 1, 64)]
)
@pytest.mark.parametrize("masked", [False, True])
def test_decode_attention_over_a_cache(kernels, tensor, rng, B, K, hq, hk, d, masked):
    q, k, v = (rng.standard_normal(s) for s in ((B, 1, hq, d), (B, K + 5, hk, d), (B, K + 5, hk, d)))
    keep = np.arange(K) >= np.arange(B)[:, None] * 3 if masked else None
    mask = None if keep is None else paddle.to_tensor(keep.astype("int64"))
    keys, values = tensor(k)[:, :K], tensor(v)[:, :K]
    found = kernels["decode_attention"].run(tensor(q), keys, values, mask, 0.3)
    near(found, attention.decode_attention(q, k[:, :K], v[:, :K], keep, 0.3))


def test_decode_attention_of_a_row_that_sees_nothing_is_zero(kernels, tensor, rng):
    q, k = tensor(rng.standard_normal((1, 1, 2, 4))), tensor(rng.standard_normal((1, 3, 1, 4)))
    found = kernels["decode_attention"].run(q, k, k, paddle.zeros([1, 3], "int64"), 1.0)
    assert (found.numpy() == 0).all()


@pytest.mark.parametrize(
    ("T", "k", "E", "H", "I"), [(1, 1, 1, 1, 1), (3, 2, 5, 16, 24), (2, 4, 8, 70, 129), (5, 3, 4, 64, 64)]
)
def test_decode_experts(kernels, tensor, rng, T, k, E, H, I):  # noqa: E741
    x, weights = rng.standard_normal((T, H)), rng.random((T, k))
    gate, up, down = (rng.standard_normal(s) * 0.3 for s in ((E, H, I), (E, H, I), (E, I, H)))
    chosen = rng.integers(-1, E, (T, k))
    found = kernels["decode_experts"].run(*map(tensor, (x, gate, up, down)), paddle.to_tensor(chosen), tensor(weights))
    near(found, experts.decode_experts(x, gate, up, down, chosen, weights))


@pytest.mark.parametrize("wrong", [-2, 3])
def test_decode_experts_refuses_an_expert_that_does_not_exist(kernels, tensor, wrong):
    x, w = tensor(np.ones((1, 4))), tensor(np.ones((3, 4, 4)))
    with pytest.raises(ValueError, match=str(wrong)):
        kernels["decode_experts"].run(x, w, w, w, paddle.to_tensor([[wrong]]), tensor([[1.0]]))
