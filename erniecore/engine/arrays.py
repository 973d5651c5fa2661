"""The memory of tensors: between paddle tensors and numpy arrays, and from one tensor to another. bfloat16 has no numpy
type: its bits travel as uint16 with the dtype named beside them. Nothing else in the engine converts arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
from erniecore_ops.bfloat16_bits import bfloat16_to_float32 as bfloat16_to_float32
from erniecore_ops.bfloat16_bits import float32_to_bfloat16 as float32_to_bfloat16
from erniecore_ops.parallel import memory_of, parallel_map
from erniecore_ops.written_values import write_values
from numpy.typing import NDArray

if TYPE_CHECKING:
    from erniecore.types.model import Tensor

Array = NDArray[Any]
#: floating-point dtype -> numpy dtype that holds its bits
_ARRAY_DTYPES = {"float32": "float32", "bfloat16": "uint16", "float16": "float16", "float64": "float64"}


def dtype_name(tensor: Tensor) -> str:
    """``"float32"``, ``"bfloat16"``, … of a tensor."""
    return str(tensor.dtype).rsplit(".", 1)[-1]


def to_numpy(tensor: Tensor) -> Array:
    """A copy of ``tensor`` on the host that owns its memory; bfloat16 as uint16 bits. Waits for the device."""
    array: Array = tensor.detach().numpy()  # paddle copies, also on the CPU
    return array


def to_tensor(array: Array, dtype: str) -> Tensor:
    """A tensor of ``dtype``; for bfloat16 ``array`` holds bits (uint16) or floats, which are rounded to nearest."""
    if dtype == "bfloat16":
        bits = array if array.dtype == np.uint16 else float32_to_bfloat16(array)
        return paddle.to_tensor(np.ascontiguousarray(bits), dtype="bfloat16")
    return paddle.to_tensor(np.ascontiguousarray(array), dtype=dtype)


def all_finite(array: Array, dtype: str) -> bool:
    """Whether no value is NaN or infinite; ``array`` holds bits for bfloat16."""
    if not array.size:
        return True
    if dtype == "bfloat16":  # magnitudes below infinity, 0x7F80; as signed numbers, the largest is one without a sign
        return int(array.view(np.int16).max()) < 0x7F80 and int(array.max()) < 0xFF80
    if array.dtype.kind != "f":
        return True
    return bool(np.isfinite(array.min()) and np.isfinite(array.max()))  # NaN is its own minimum and maximum


def set_value(tensor: Tensor, array: Array) -> None:
    """Overwrite ``tensor`` in place with ``array`` (bits for bfloat16); shapes must agree.

    Raises:
        ValueError: another shape.
    """
    if tuple(array.shape) != tuple(tensor.shape):
        raise ValueError(f"shape {tuple(array.shape)} does not fit a tensor of shape {tuple(tensor.shape)}")
    values = to_tensor(array, dtype_name(tensor))
    if tensor._is_initialized():
        tensor.set_value(values)
    else:  # what is there already needs no copy
        share_memory(values, tensor)


def place_values(tensor: Tensor, array: Array, found: str, convert: Callable[[Array], Array]) -> bool:
    """Overwrite ``tensor`` with ``array`` of dtype ``found``, each value moved once; whether all are finite in its dtype.

    Args:
        array: of the shape of ``tensor``, with any strides. convert: its values -> those of the dtype of ``tensor``.
    """
    wanted = dtype_name(tensor)
    # a dtype of fewer bits is looked at before it is widened
    checked = found if (found, wanted) in (("bfloat16", "float32"), ("float16", "float32")) else wanted

    def take(part: Array) -> tuple[Array, bool]:
        values = part if found == wanted else convert(part)
        return values, all_finite(part if checked == found else values, checked)

    if tensor._is_initialized() or not on_host() or wanted not in _ARRAY_DTYPES or not tensor.size:
        own = np.empty(array.shape, array.dtype if found == wanted else _ARRAY_DTYPES.get(wanted, wanted))
        good = write_values(own, array, take)
        if good:
            set_value(tensor, own)
        return good
    made = paddle.empty(tensor.shape, wanted)
    good = write_values(memory_of(made), array, take, partial(parallel_map, like=made))
    share_memory(made, tensor)
    return good


def on_host() -> bool:
    """Whether new tensors are in the memory of the host."""
    return bool(paddle.get_device() == "cpu")


def over(array: Array, dtype: str) -> Tensor:
    """A frozen tensor over the memory of ``array``, which it keeps alive; not to be written to where that is a file."""
    if dtype == "bfloat16":  # Paddle takes numpy's uint16 for a dtype of its own, which few kernels have
        return paddle.utils.dlpack.from_dlpack(array.view(np.int16)).view(dtype)
    return paddle.utils.dlpack.from_dlpack(array)


def share_memory(source: Tensor, target: Tensor) -> None:
    """Give ``target`` the memory and the shape of ``source``: whoever holds it holds that."""
    target.get_tensor()._share_data_with(source.get_tensor())
