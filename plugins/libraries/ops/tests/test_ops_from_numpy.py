"""Tensors of arrays: the same values, dtype and shape, and memory that is given back."""

from pathlib import Path

import numpy as np
import paddle
import pytest
from erniecore_ops import functions as ops


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "uint16", "int8", "uint8", "bool", "int32", "int64"]
)
def test_values_shape_and_dtype_are_those_of_paddles_own(dtype):
    whole = np.arange(6).reshape(2, 3).astype(dtype)
    for array in (whole, whole.T, whole[:, ::2], whole[:0], whole[1, 1].reshape(())):
        found, expected = ops.tensor_of(array), paddle.to_tensor(array)
        assert (found.dtype, found.shape, found.stop_gradient) == (expected.dtype, expected.shape, True)
        assert np.array_equal(found.numpy(), expected.numpy())


def test_it_is_a_copy():
    array = np.arange(3)
    found = ops.tensor_of(array)
    array[0] = 9
    assert found.tolist() == [0, 1, 2]


def test_nothing_is_kept():
    """``paddle.to_tensor`` would keep some 4 MB here."""
    ids = np.arange(8).reshape(8, 1)
    for count in (2_000, 40_000):
        before = resident()
        for _ in range(count):
            ops.tensor_of(ids)
    assert resident() - before < 1 << 20


def resident() -> int:
    """Bytes of memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) << 10
