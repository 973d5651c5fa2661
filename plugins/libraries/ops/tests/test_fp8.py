"""FP8 numbers against ml_dtypes on every bfloat16 value, the known traps of the cast, and the Hadamard transform."""

import ml_dtypes
import numpy as np
import paddle
import pytest
from erniecore_ops import functions as ops
from hypothesis import given, settings
from hypothesis import strategies as st

TYPES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
ALL_BFLOAT16 = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
ONE = paddle.ones([1])


def quantized(values, quant_dtype, scale=ONE):
    return ops.fp8_quantize(paddle.to_tensor(np.asarray(values, np.float32)), scale, quant_dtype).numpy()


@pytest.mark.parametrize("quant_dtype", TYPES)
def test_every_bfloat16_in_range_is_cast_as_ml_dtypes_does(quant_dtype):
    values = ALL_BFLOAT16[np.abs(ALL_BFLOAT16) <= ops.FP8[quant_dtype].largest]
    assert len(values) > 30_000
    expected = values.astype(TYPES[quant_dtype]).astype(np.float32)
    assert quantized(values, quant_dtype).tobytes() == expected.tobytes()


@pytest.mark.parametrize("quant_dtype", TYPES)
def test_everything_beyond_the_range_saturates(quant_dtype):
    largest = ops.FP8[quant_dtype].largest
    values = ALL_BFLOAT16[np.abs(ALL_BFLOAT16) > largest]
    assert np.isinf(values).any()
    np.testing.assert_array_equal(quantized(values, quant_dtype), np.sign(values) * largest)


@pytest.mark.parametrize("quant_dtype", TYPES)
def test_not_a_number_stays(quant_dtype):
    assert np.isnan(quantized([np.nan, -np.nan], quant_dtype)).all()


def test_no_value_between_464_and_480_becomes_nan():
    """The plain cast makes NaN of them, and a scale of amax / 488, as some toolkits have it, leads there."""
    values = np.linspace(464, 488, 97, dtype=np.float32)
    plain = paddle.to_tensor(values).astype("float8_e4m3fn").astype("float32").numpy()
    assert np.isnan(plain).any()
    np.testing.assert_array_equal(quantized(values, "e4m3"), np.full(97, 448, np.float32))


def test_no_value_above_the_largest_of_e5m2_becomes_infinite():
    values = np.linspace(57345, 66000, 97, dtype=np.float32)
    assert np.isinf(paddle.to_tensor(values).astype("float8_e5m2").astype("float32").numpy()).any()
    np.testing.assert_array_equal(quantized(values, "e5m2"), np.full(97, 57344, np.float32))


@pytest.mark.parametrize("quant_dtype", TYPES)
def test_all_codes_are_fixed_points(quant_dtype):
    dequantized = np.arange(256, dtype=np.uint8).view(TYPES[quant_dtype]).astype(np.float32)
    dequantized = dequantized[np.isfinite(dequantized)]
    assert len(dequantized) == {"e4m3": 254, "e5m2": 248}[quant_dtype]
    assert quantized(dequantized, quant_dtype).tobytes() == dequantized.tobytes()


def test_scale_divides_in_float32_and_broadcasts():
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    scale = np.linspace(0.001, 0.7, 5, dtype=np.float32)[:, None]
    expected = np.clip(x / scale, -448, 448).astype(TYPES["e4m3"]).astype(np.float32)
    assert quantized(x, "e4m3", paddle.to_tensor(scale)).tobytes() == expected.tobytes()


def sylvester(size):
    """From the definition by bits: H[i, j] = (-1)^popcount(i & j)."""
    return np.array([[(-1.0) ** bin(i & j).count("1") for j in range(size)] for i in range(size)], np.float32)


@pytest.mark.parametrize("block", [1, 2, 8, 32])
def test_hadamard_is_the_block_diagonal_sylvester_matrix(block):
    x = np.random.default_rng(1).standard_normal((3, 2, 64)).astype(np.float32)
    full = np.kron(np.eye(64 // block, dtype=np.float32), sylvester(block))
    np.testing.assert_allclose(ops.hadamard(paddle.to_tensor(x), block).numpy(), x @ full, rtol=1e-5, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 5), st.integers(1, 4), st.integers(0, 2**31))
def test_hadamard_twice_is_the_block_size(power, blocks, seed):
    block = 1 << power
    x = np.random.default_rng(seed).integers(-8, 9, (2, block * blocks)).astype(np.float32)
    twice = ops.hadamard(ops.hadamard(paddle.to_tensor(x), block), block)
    np.testing.assert_array_equal(twice.numpy(), block * x)


def test_product_does_not_change_when_both_sides_are_turned():
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((9, 96)).astype(np.float32), rng.standard_normal((96, 5)).astype(np.float32)
    turned_x, turned_w = (ops.hadamard(paddle.to_tensor(t), 32).numpy() for t in (x, np.ascontiguousarray(w.T)))
    np.testing.assert_allclose(turned_x @ turned_w.T / 32, x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("block", "width"), [(3, 12), (0, 8), (16, 24)])
def test_blocks_that_do_not_fit_are_refused(block, width):
    with pytest.raises(ValueError, match="do not fit"):
        ops.hadamard(paddle.ones([2, width]), block)
