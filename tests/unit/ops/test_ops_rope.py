"""Rotary positions against complex numbers: a pair (2i, 2i + 1) is one number, a position is a turn."""

import numpy as np
import paddle  # noqa: TID253
import pytest

from erniecore import ops


def reference(x, positions, theta):
    d = x.shape[-1]
    angle = positions[..., None] * theta ** (-np.arange(0, d, 2) / d)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)[:, :, None, :]
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape)


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


def test_gradients(rng, check_gradients):
    cos, sin = ops.rope_tables(paddle.arange(6).unsqueeze(0).tile([2, 1]), 8, 1e4)
    check_gradients(lambda x: ops.apply_rope(x, cos, sin), rng.standard_normal((2, 6, 3, 8)))


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
