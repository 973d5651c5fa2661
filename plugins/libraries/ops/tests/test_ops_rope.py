"""Rotary positions against complex numbers: a pair (2i, 2i + 1), or (i, i + d/2), is one number, a position is a turn."""

import numpy as np
import paddle
import pytest
from erniecore_ops import functions as ops


def turned(x, angle, halves=False):
    """x [B, S, h, d] turned by angles [B, S, d/2]."""
    d = x.shape[-1]
    first, second = (slice(d // 2), slice(d // 2, None)) if halves else (slice(0, None, 2), slice(1, None, 2))
    z = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angle)[:, :, None, :]
    y = np.empty_like(x)
    y[..., first], y[..., second] = z.real, z.imag
    return y


def reference(x, positions, theta):
    d = x.shape[-1]
    return turned(x, positions[..., None] * theta ** (-np.arange(0, d, 2) / d))


@pytest.mark.parametrize(("shape", "theta"), [((1, 1, 1, 2), 1e4), ((2, 7, 3, 10), 1e4), ((2, 130, 4, 64), 5e5)])
def test_matches_complex_rotation(rng, shape, theta):
    x, positions = rng.standard_normal(shape), rng.integers(0, 500, shape[:2])
    cos, sin = ops.rope_tables(paddle.to_tensor(positions), shape[-1], theta)
    assert cos.dtype == sin.dtype == paddle.float32
    y = ops.apply_rope(paddle.to_tensor(x.astype("float32")), cos, sin)
    np.testing.assert_allclose(y.numpy(), reference(x, positions, theta), atol=3e-4)


def test_one_table_row_serves_the_whole_batch(rng):
    x = paddle.to_tensor(rng.standard_normal((3, 5, 2, 8)).astype("float32"))
    position = paddle.arange(5).unsqueeze(0)
    one = ops.apply_rope(x, *ops.rope_tables(position, 8, 1e4))
    many = ops.apply_rope(x, *ops.rope_tables(position.tile([3, 1]), 8, 1e4))
    assert np.array_equal(one.numpy(), many.numpy())


@pytest.mark.parametrize("halves", [False, True])
def test_gradients(rng, check_gradients, halves):
    cos, sin = ops.rope_tables(paddle.arange(6).unsqueeze(0).tile([2, 1]), 8, 1e4)
    check_gradients(lambda x: ops.apply_rope(x, cos, sin, halves=halves), rng.standard_normal((2, 6, 3, 8)))


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 5, 3, 10), (1, 70, 2, 80)])
def test_halves(rng, shape):
    x, positions = rng.standard_normal(shape), rng.integers(0, 500, shape[:2])
    tables = ops.rope_tables(paddle.to_tensor(positions), shape[-1], 1e4)
    y = ops.apply_rope(paddle.to_tensor(x.astype("float32")), *tables, halves=True)
    angle = positions[..., None] * 1e4 ** (-np.arange(0, shape[-1], 2) / shape[-1])
    np.testing.assert_allclose(y.numpy(), turned(x, angle, halves=True), atol=3e-4)


#: name -> head size, halves, and what each pair follows, written out
LAYOUTS = {
    "ernie45-vl": (16, False, ops.axes_by_parity(16, 3), [1, 2, 1, 2, 1, 0, 0, 0]),
    "paddleocr-vl": (24, True, ops.axes_in_sections([3, 4, 5]), [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_three_axes(rng, name):
    d, halves, axes, follows = LAYOUTS[name]
    assert list(axes) == follows
    x, positions = rng.standard_normal((2, 7, 3, d)), rng.integers(0, 300, (2, 7, 3))
    tables = ops.rope_tables_3d(paddle.to_tensor(positions), d, 5e5, axes)
    y = ops.apply_rope(paddle.to_tensor(x.astype("float32")), *tables, halves=halves)
    angle = positions[..., follows] * 5e5 ** (-np.arange(0, d, 2) / d)
    np.testing.assert_allclose(y.numpy(), turned(x, angle, halves), atol=3e-4)


def test_equal_positions_on_all_axes_are_the_positions_of_text():
    position = paddle.arange(9).unsqueeze(0)
    text = ops.rope_tables(position, 128, 5e5)
    tables = ops.rope_tables_3d(position.unsqueeze(-1).tile([1, 1, 3]), 128, 5e5, ops.axes_by_parity(128, 20))
    for found, expected in zip(tables, text, strict=True):
        assert np.array_equal(found.numpy(), expected.numpy())


@pytest.mark.parametrize("axes", [(0, 1), (0, 1, 2, 3), (0, 0, -1, 0)])
def test_axes_that_do_not_fit_are_refused(axes):
    with pytest.raises(ValueError, match="4 pairs need one of axes 0"):
        ops.rope_tables_3d(paddle.zeros([1, 2, 3], "int64"), 8, 1e4, axes)


def test_rows_and_columns_of_patches(rng):
    d, positions = 12, rng.integers(0, 40, (1, 6, 2))
    x = rng.standard_normal((1, 6, 2, d))
    tables = ops.rope_tables_2d(paddle.to_tensor(positions), d, 1e4)
    y = ops.apply_rope(paddle.to_tensor(x.astype("float32")), *tables, halves=True)
    frequency = 1e4 ** (-np.arange(0, d // 2, 2) / (d // 2))
    angle = np.concatenate([positions[..., :1] * frequency, positions[..., 1:] * frequency], axis=-1)
    np.testing.assert_allclose(y.numpy(), turned(x, angle, halves=True), atol=3e-4)


def test_keeps_the_dtype_but_turns_in_float32(rng):
    x = paddle.to_tensor(rng.standard_normal((1, 4, 2, 8)).astype("float32")).astype("bfloat16")
    cos, sin = ops.rope_tables(paddle.to_tensor([[1000, 2000, 3000, 4000]]), 8, 1e4)
    y = ops.apply_rope(x, cos, sin)
    exact = ops.apply_rope(x.astype("float32"), cos, sin).astype("bfloat16")
    assert y.dtype == paddle.bfloat16
    assert np.array_equal(y.astype("float32").numpy(), exact.astype("float32").numpy())


def test_same_bits(rng, check_same_bits):
    cos, sin = ops.rope_tables(paddle.arange(40).unsqueeze(0), 16, 1e4)
    check_same_bits(lambda x: ops.apply_rope(x, cos, sin), rng.standard_normal((1, 40, 2, 16)).astype("float32"))
