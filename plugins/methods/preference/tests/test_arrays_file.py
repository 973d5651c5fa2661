"""Files of whole arrays: exact dtypes, replaced at once, changes noticed."""

import numpy as np
import pytest
from erniecore_checkpoint.safetensors_write import write_safetensors
from erniecore_preference.arrays import read_arrays, write_arrays

from erniecore.errors import CheckpointError

ARRAYS = {
    "keys": np.array([1, 2**63 + 5], np.uint64),
    "values": np.array([[0.1, -1e300]]),
    "none": np.zeros((0, 2), np.float32),
}


def test_arrays_come_back_with_their_dtypes(tmp_path):
    write_arrays(tmp_path / "new" / "a.safetensors", ARRAYS)
    found = read_arrays(tmp_path / "new" / "a.safetensors")
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_a_file_is_replaced_and_nothing_temporary_stays(tmp_path):
    for count in (1, 2):
        write_arrays(tmp_path / "a.safetensors", {"x": np.arange(count)})
    assert len(read_arrays(tmp_path / "a.safetensors")["x"]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


@pytest.mark.parametrize("place", [-1, -40])
def test_a_changed_byte_is_noticed(tmp_path, place):
    path = tmp_path / "a.safetensors"
    write_arrays(path, {"x": np.arange(100)})
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError):
        read_arrays(path)


def test_a_file_of_somebody_else_is_refused(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", {"x": np.arange(3)})
    with pytest.raises(CheckpointError, match="not what was written"):
        read_arrays(tmp_path / "a.safetensors")
