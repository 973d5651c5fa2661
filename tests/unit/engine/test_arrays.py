"""Between paddle and numpy, bfloat16 included."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from hypothesis import given
from hypothesis import strategies as st

from erniecore.engine.arrays import (
    all_finite,
    bfloat16_to_float32,
    dtype_name,
    float32_to_bfloat16,
    set_value,
    to_numpy,
    to_tensor,
)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_rounding_equals_paddles(values):
    array = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        expected = paddle.to_tensor(array).astype("bfloat16").numpy()
    assert (float32_to_bfloat16(array) == expected).all()


def test_nan_stays_nan_and_does_not_become_infinity():
    bits = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000], np.uint32).view(np.float32)
    assert np.isnan(bfloat16_to_float32(float32_to_bfloat16(bits))).all()


@given(st.integers(0, 2**16 - 1))
def test_bits_go_round(bits):
    value = np.array([bits], np.uint16)
    back = float32_to_bfloat16(bfloat16_to_float32(value))
    assert back[0] == bits or np.isnan(bfloat16_to_float32(value)[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool"])
def test_tensor_goes_round(dtype):
    tensor = paddle.to_tensor([[1, 0], [3, 4]]).astype(dtype)
    assert dtype_name(tensor) == dtype
    again = to_tensor(to_numpy(tensor), dtype)
    assert again.dtype == tensor.dtype
    assert (again == tensor).all()


def test_scalar_keeps_its_shape():
    assert to_numpy(paddle.to_tensor(3.0)).shape == ()


def test_array_does_not_follow_the_tensor():
    tensor = paddle.zeros([3])
    array = to_numpy(tensor)
    tensor.add_(paddle.ones([3]))
    assert not array.any()


def test_set_value_keeps_dtype_and_refuses_other_shapes():
    tensor = paddle.zeros([2], dtype="bfloat16")
    set_value(tensor, np.array([1.5, 2.5], np.float32))
    assert dtype_name(tensor) == "bfloat16"
    assert to_numpy(tensor.astype("float32")).tolist() == [1.5, 2.5]
    with pytest.raises(ValueError, match="shape"):
        set_value(tensor, np.zeros([2, 1], np.float32))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_one_value_that_is_not_finite_is_found(value, dtype):
    numbers = np.linspace(-3e4, 3e4, 9, dtype=np.float32)
    as_dtype = float32_to_bfloat16 if dtype == "bfloat16" else lambda a: a.astype(dtype)
    assert all_finite(as_dtype(numbers), dtype)
    numbers[4] = value
    assert not all_finite(as_dtype(numbers), dtype)
