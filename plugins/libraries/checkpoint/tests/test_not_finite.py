"""No file with infinite values or NaN is kept: the last barrier of checkpoints, model directories and adapters."""

import numpy as np
import pytest
from erniecore_checkpoint.floats import write_tensors
from erniecore_checkpoint.manifest import list_checkpoints
from erniecore_checkpoint.save import save_checkpoint
from erniecore_checkpoint.tensors import Tensor
from erniecore_errors import NumericsError

#: dtype -> bits that are not finite, and the largest finite ones of both signs
BITS = {
    "F8_E4M3": (np.uint8, (0x7F, 0xFF), (0x7E, 0xFE)),
    "F8_E5M2": (np.uint8, (0x7C, 0xFD), (0x7B, 0xFB)),
    "F16": (np.uint16, (0x7C00, 0xFC01), (0x7BFF, 0xFBFF)),
    "BF16": (np.uint16, (0x7F80, 0xFFC0), (0x7F7F, 0xFF7F)),
    "F32": (np.uint32, (0x7F800000, 0xFF800000, 0x7FC00000), (0x7F7FFFFF, 0xFF7FFFFF)),
    "F64": (np.uint64, (0x7FF0 << 48, 0xFFF8 << 48), (0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF)),
}
CASES = [(dtype, bits, False) for dtype, (_, bad, _) in BITS.items() for bits in bad]
CASES += [(dtype, bits, True) for dtype, (_, _, good) in BITS.items() for bits in good]


def tensor_of(dtype, bits):
    from erniecore_checkpoint.tensors import DTYPES

    array = np.zeros(7, BITS[dtype][0])
    array[5] = bits
    return Tensor(dtype, (7,), lambda: array.view(DTYPES[dtype]))


@pytest.mark.parametrize("group", ["model", "optim", "ema"])
@pytest.mark.parametrize(("dtype", "bits", "good"), CASES)
def test_a_checkpoint_takes_finite_tensors_only(tmp_path, group, dtype, bits, good):
    save_checkpoint(tmp_path, 1, {"model": {"w": np.zeros(3, np.float32)}}, {})
    tensors = {"model": {"w": np.zeros(3, np.float32)}, group: {"layer.first": tensor_of(dtype, bits)}}
    if good:
        save_checkpoint(tmp_path, 2, tensors, {})
        return
    with pytest.raises(NumericsError) as caught:
        save_checkpoint(tmp_path, 2, tensors, {})
    assert caught.value.where == "layer.first"
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000001"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_small_file_takes_finite_tensors_only(tmp_path, value):
    with pytest.raises(NumericsError, match="not finite"):
        write_tensors(tmp_path / "adapter.safetensors", {"a": np.array([1, value], np.float32)})
